// Schedule, Timeline and simulate for Python.
#include "documents.h"
#include "memsched/simulate/simulate.h"
#include "memsched/support/errors.h"

namespace memsched::bindings {
namespace {

constexpr const char* verbs[] = {"run", "offload", "prefetch", "free", "update"}; // in the order of Verb

Verb parse_verb(const py::dict& d, std::size_t index) {
    int found = -1;
    for (int v = 0; v < static_cast<int>(std::size(verbs)); ++v) {
        if (d.contains(verbs[v])) {
            if (found >= 0) {
                refuse_step(index,
                            std::string("has both '") + verbs[found] + "' and '" + verbs[v] + "'; a step has one verb");
            }
            found = v;
        }
    }
    if (found < 0) {
        const std::string key = d.empty() ? "" : " but " + py::cast<std::string>(py::repr((*d.begin()).first));
        refuse_step(index, "has no verb" + key + "; give run, offload, prefetch, free or update");
    }
    return static_cast<Verb>(found);
}

void check_step_keys(const py::dict& d, Verb verb, std::size_t index) {
    for (const auto& item : d) {
        const std::string key = to_text(item.first, "a key of a step");
        const bool known = key == verbs[static_cast<int>(verb)] || (key == "after" && verb != Verb::free) ||
                           (key == "at" && (verb == Verb::run || verb == Verb::prefetch)) ||
                           ((key == "alg" || key == "skip") && verb == Verb::run);
        if (!known) {
            refuse_step(index,
                        "a " + std::string(verbs[static_cast<int>(verb)]) + " has the unknown key '" + key + "'");
        }
    }
}

NamedStep parse_step(py::handle value, std::size_t index) {
    if (!py::isinstance<py::dict>(value)) {
        refuse_step(index, "is not an object");
    }
    const auto d = py::reinterpret_borrow<py::dict>(value);
    NamedStep step;
    step.verb = parse_verb(d, index);
    check_step_keys(d, step.verb, index);
    const std::string what = "step " + std::to_string(index);
    step.name = to_text(d[verbs[static_cast<int>(step.verb)]], what);
    if (d.contains("alg")) {
        step.alg = to_text(d["alg"], what + ": alg");
    }
    if (d.contains("skip")) {
        step.skip = to_column(d["skip"], what + ": skip", to_text);
    }
    if (d.contains("after")) {
        for (const std::int64_t earlier : to_column(d["after"], what + ": after", to_whole)) {
            if (earlier < 0 || static_cast<std::size_t>(earlier) >= index) {
                refuse_step(index,
                            "after names step " + std::to_string(earlier) + "; it must point to an earlier step");
            }
            step.after.push_back(static_cast<StepId>(earlier));
        }
    }
    if (d.contains("at") && step.verb == Verb::prefetch) {
        step.at.emplace_back(step.name, to_bytes(d["at"], what + ": at"));
    } else if (d.contains("at")) {
        if (!py::isinstance<py::dict>(d["at"])) {
            refuse_step(index, "at of a run must map tensors to addresses");
        }
        for (const auto& item : py::dict(d["at"])) {
            step.at.emplace_back(to_text(item.first, what + ": at"), to_bytes(item.second, what + ": at"));
        }
    }
    return step;
}

py::dict show_step(const NamedStep& step) {
    py::dict d;
    d[verbs[static_cast<int>(step.verb)]] = step.name;
    if (!step.alg.empty()) {
        d["alg"] = step.alg;
    }
    if (!step.at.empty() && step.verb == Verb::prefetch) {
        d["at"] = step.at[0].second;
    } else if (!step.at.empty()) {
        py::dict at;
        for (const auto& [name, address] : step.at) {
            at[py::str(name)] = address;
        }
        d["at"] = at;
    }
    if (!step.skip.empty()) {
        d["skip"] = step.skip;
    }
    if (!step.after.empty()) {
        d["after"] = step.after;
    }
    return d;
}

std::vector<Round> to_rounds(const py::handle& rounds) {
    std::vector<Round> found;
    for (const py::handle round : items(rounds, "rounds")) {
        const std::vector<std::int64_t> pair = to_column(round, "rounds", to_whole);
        if (pair.size() != 2) {
            throw ScheduleError("a round has " + std::to_string(pair.size()) + " numbers; it is [batch, times]");
        }
        found.push_back({pair[0], pair[1]});
    }
    return found;
}

std::vector<NamedStep> to_steps(const py::handle& steps) {
    std::vector<NamedStep> found;
    for (const py::handle step : items(steps, "steps")) {
        hear_interrupts();
        found.push_back(parse_step(step, found.size()));
    }
    return found;
}

constexpr std::string_view copies_names[] = {"device", "host", "both"}; // in the order of Copies

std::vector<std::pair<std::string, Copies>> to_border(const py::handle& border) {
    std::vector<std::pair<std::string, Copies>> found;
    for (const auto& item : to_dict(border, "border", "a dict of persistent tensors")) {
        const std::string name = to_text(item.first, "border"),
                          copies = to_text(item.second, "border of '" + name + "'");
        const auto known = std::ranges::find(copies_names, copies);
        if (known == std::end(copies_names)) {
            throw ScheduleError("border of '" + name + "' is '" + copies + "'; it must be device, host or both");
        }
        found.emplace_back(name, static_cast<Copies>(known - std::begin(copies_names)));
    }
    return found;
}

py::dict show_border(const Schedule& schedule) {
    py::dict border;
    for (const auto& [name, copies] : schedule.border) {
        border[py::str(name)] = copies_names[static_cast<std::size_t>(copies)];
    }
    return border;
}

// A changed copy of the schedule, checked again.
template <class Change> Schedule changed(Schedule schedule, const Change& change) {
    change(schedule);
    check_schedule(schedule);
    return schedule;
}

Schedule make_schedule(const py::object& steps, const py::object& budget, const py::object& graph,
                       const py::object& planner, const Chunk& chunk, const py::object& rounds,
                       const py::object& memory_mode, const py::object& border) {
    Schedule s;
    const std::string memory = to_text(memory_mode, "memory");
    if (memory != "fluid" && memory != "contiguous") {
        throw std::invalid_argument("memory is '" + memory + "'; it must be fluid or contiguous");
    }
    s.memory = memory == "fluid" ? MemoryMode::fluid : MemoryMode::contiguous;
    s.budget = to_size(budget, "budget");
    s.graph = to_text(graph, "graph");
    s.planner = planner.is_none() ? R"({"name": "user"})" : dump_json(planner, "planner");
    s.chunk = chunk;
    if (!rounds.is_none()) {
        s.rounds = to_rounds(rounds);
    }
    if (!border.is_none()) {
        s.border = to_border(border);
    }
    s.steps = to_steps(steps);
    check_schedule(s);
    return s;
}

} // namespace

void bind_schedules(py::module_& module) {
    py::class_<Schedule> schedule(module, "Schedule",
                                  R"(What happens to every tensor, as an ordered list of steps. Immutable.

Parameters
----------
steps : sequence of dict
    {"run": op}, {"offload": tensor}, {"prefetch": tensor}, {"free": tensor} or {"update": op}, on the host;
    docs/schedule.md has the options.
budget : int or str
    Bytes, or a text such as "6GiB"; resident included.
graph : str
    Name of the graph that it was made for.
planner : dict, optional
    {"name": .., options}.
chunk : None, int or "storage"
    How the chain was cut: see `to_graph`.
rounds : list of [batch, times]
memory : "fluid" or "contiguous"
border : dict, optional
    Of persistent tensors, where they are before the first step and after the last: "device", "host" or "both".
    Default: "device".

Raises
------
ScheduleError
    With the index of the step to blame in `.step`.
)");
    schedule
        .def(py::init(&make_schedule), "steps"_a, py::kw_only(), "budget"_a, "graph"_a = "", "planner"_a = py::none(),
             "chunk"_a = py::none(), "rounds"_a = py::none(), "memory"_a = "fluid", "border"_a = py::none())
        .def_property_readonly("planner", [](const Schedule& s) { return load_json(s.planner); })
        .def_readonly("graph", &Schedule::graph)
        .def_readonly("budget", &Schedule::budget, "Bytes, resident included.")
        .def_property_readonly("chunk", [](const Schedule& s) { return s.chunk; })
        .def_property_readonly("memory",
                               [](const Schedule& s) { return s.memory == MemoryMode::fluid ? "fluid" : "contiguous"; })
        .def_property_readonly("border", &show_border, "Where persistent tensors begin and end; a dict.")
        .def_property_readonly("rounds",
                               [](const Schedule& s) {
                                   py::list rounds;
                                   for (const Round& r : s.rounds) {
                                       rounds.append(py::make_tuple(r.batch, r.times));
                                   }
                                   return py::tuple(rounds);
                               })
        .def_property_readonly(
            "steps",
            [](const Schedule& s) {
                py::list steps;
                for (const NamedStep& step : s.steps) {
                    hear_interrupts();
                    steps.append(show_step(step));
                }
                return py::tuple(steps);
            },
            "The steps as dicts, as in the JSON form.")
        .def_property_readonly(
            "offloaded", [](const Schedule& s) { return py::tuple(py::cast(names_with(s, Verb::offload, 1))); },
            "Names of the offloaded tensors, in the order of their first offload.")
        .def_property_readonly(
            "recomputed", [](const Schedule& s) { return py::tuple(py::cast(names_with(s, Verb::run, 2))); },
            "Names of the ops that run more than once, in the order of their first repeat.")
        .def(
            "with_budget",
            [](const Schedule& s, const py::object& budget) {
                return changed(s, [&](Schedule& other) { other.budget = to_size(budget, "budget"); });
            },
            "budget"_a, "The same steps with another budget (bytes, resident included).")
        .def(
            "with_rounds",
            [](const py::object& self, const py::object& rounds) {
                const auto& s = self.cast<const Schedule&>();
                std::vector<Round> given = to_rounds(rounds);
                return given == s.rounds
                           ? self
                           : py::cast(changed(s, [&](Schedule& other) { other.rounds = std::move(given); }));
            },
            "rounds"_a, "The same steps with other rounds, a list of [batch, times].")
        .def(
            "with_steps",
            [](const Schedule& s, const py::object& steps) {
                return changed(s, [&](Schedule& other) { other.steps = to_steps(steps); });
            },
            "steps"_a, "Other steps, as dicts, for the same graph, budget and rounds.")
        .def("__len__", [](const Schedule& s) { return s.steps.size(); })
        .def("__repr__", [](const Schedule& s) {
            const std::string name = py::repr(load_json(s.planner).attr("get")("name"));
            return "Schedule(graph='" + s.graph + "', planner=" + name + ", steps=" + std::to_string(s.steps.size()) +
                   ", budget=" + std::to_string(s.budget) + ")";
        });
    bind_document(schedule, "read_plan", "write_plan");

    py::class_<Timeline> timeline(module, "Timeline", R"(What happened when, as the simulator measured it. Immutable.

Attributes
----------
start, end : ndarray of float, one entry a step
    Seconds, of one round. A free has start == end: the moment its bytes came back.
makespan : float
    Seconds, all rounds together.
peak_memory : int
    Bytes, resident included.
memory : (ndarray of float, ndarray of int)
    Times (seconds) and the bytes held from then on, resident included.
blocks : tuple of six ndarrays, one entry a block of memory
    Tensor (its index in the graph; -1: a workspace), first step, the step from which on it is free, bytes, whether it
    is there from the beginning, address (-1: none). Empty where the timeline is that of a family, was read from a file,
    copied or pickled.
bytes_out, bytes_in : int
    Bytes offloaded and prefetched, all rounds together.
idle, recompute_time : float
    Seconds that the compute stream waits, and that it spends on repeated runs, all rounds together.
)");
    timeline.def_property_readonly("start", view_of(&Timeline::start), "Seconds, one entry per step.")
        .def_property_readonly("end", view_of(&Timeline::end), "Seconds, one entry per step.")
        .def_property_readonly(
            "memory",
            [](const py::object& self) {
                const auto& t = self.cast<const Timeline&>();
                return py::make_tuple(view(t.memory_times, self), view(t.memory_bytes, self));
            },
            "Times (seconds) and the bytes held from then on.")
        .def_property_readonly(
            "blocks", [](const Timeline& t) { return stay_columns(t.blocks.value_or(std::vector<Stay>())); },
            "(tensor, start, end, bytes, source, at): what is held from step to step, one entry a block. Not saved.")
        .def_property_readonly(
            "_knows_blocks", [](const Timeline& t) { return t.blocks.has_value(); }, "Whether `blocks` are all.")
        .def_readonly("makespan", &Timeline::makespan, "Seconds.")
        .def_readonly("peak_memory", &Timeline::peak_memory, "Bytes, resident included.")
        .def_readonly("bytes_out", &Timeline::bytes_out)
        .def_readonly("bytes_in", &Timeline::bytes_in)
        .def_readonly("idle", &Timeline::idle, "Seconds.")
        .def_readonly("recompute_time", &Timeline::recompute_time, "Seconds.")
        .def("__repr__",
             [](const Timeline& t) {
                 return "Timeline(makespan=" + show(t.makespan) + ", peak_memory=" + std::to_string(t.peak_memory) +
                        ")";
             })
        .def(
            "to_json",
            [](const Timeline& t) {
                return py::dict("start"_a = t.start, "end"_a = t.end, "makespan"_a = t.makespan,
                                "peak_memory"_a = t.peak_memory,
                                "memory"_a = py::dict("times"_a = t.memory_times, "bytes"_a = t.memory_bytes),
                                "bytes_out"_a = t.bytes_out, "bytes_in"_a = t.bytes_in, "idle"_a = t.idle,
                                "recompute_time"_a = t.recompute_time);
            },
            "The timeline in its form within a memsched-result.")
        .def_static(
            "from_json",
            [](const py::object& document) {
                const py::dict d = to_dict(document, "timeline", "a dict, as to_json wrote it");
                check_keys(d, "timeline",
                           {"start", "end", "makespan", "peak_memory", "memory", "bytes_out", "bytes_in", "idle",
                            "recompute_time"},
                           {});
                const py::dict memory = to_dict(d["memory"], "timeline: memory", "an object with times and bytes");
                check_keys(memory, "timeline: memory", {"times", "bytes"}, {});
                Timeline t;
                t.start = to_column(d["start"], "timeline: start", to_seconds);
                t.end = to_column(d["end"], "timeline: end", to_seconds);
                t.makespan = to_seconds(d["makespan"], "timeline: makespan");
                t.peak_memory = to_bytes(d["peak_memory"], "timeline: peak_memory");
                t.memory_times = to_column(memory["times"], "timeline: memory times", to_seconds);
                t.memory_bytes = to_column(memory["bytes"], "timeline: memory bytes", to_bytes);
                t.bytes_out = to_whole(d["bytes_out"], "timeline: bytes_out");
                t.bytes_in = to_whole(d["bytes_in"], "timeline: bytes_in");
                t.idle = to_seconds(d["idle"], "timeline: idle");
                t.recompute_time = to_seconds(d["recompute_time"], "timeline: recompute_time");
                check_timeline(t);
                return t;
            },
            "document"_a, "Reads what to_json wrote.");
    bind_value(timeline);

    module.def(
        "simulate_graph",
        [](const Graph& g, const Schedule& s, const Device& d) {
            const PythonProgress ticker;
            return simulate(g, s, d, ticker.progress());
        },
        "graph"_a, "schedule"_a, "device"_a);
    module.def(
        "steady_state",
        [](const Graph& g, const Schedule& s, const Device& d) {
            const PythonProgress ticker;
            Timeline timeline = simulate(g, s, d, ticker.progress());
            return std::pair(timeline.makespan, std::move(timeline.start));
        },
        "graph"_a, "schedule"_a, "device"_a,
        "Period and starts of a schedule that is repeated, for the validator to check.");
    module.def(
        "simulate_rounds",
        [](const std::map<std::int64_t, const Graph*>& graphs, std::int64_t batch, const Schedule& s, const Device& d) {
            const PythonProgress ticker;
            return simulate_rounds(graphs, batch, s, d, ticker.progress());
        },
        "graphs"_a, "batch"_a, "schedule"_a, "device"_a, "graphs: of each batch among the rounds.");
}

} // namespace memsched::bindings
