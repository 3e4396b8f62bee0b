#include "memsched/planners/classes/pooch.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace memsched {
namespace {

using Classes = std::vector<MapClass>;

// Maps whose transfers, when all maps are swapped, overlap times in which the compute stream is idle: by their offload,
// and by their prefetch.
struct Stalling {
    std::vector<std::uint8_t> out, in;
};

Stalling stalling_maps(const Graph& graph, const Device& device, ClassSearch& search) {
    const StepList list = search.steps(Classes(search.maps().size(), MapClass::swap));
    const Timeline timeline = simulate(graph, list, device, device.memory);
    std::vector<std::pair<Seconds, Seconds>> gaps;
    Seconds busy_until = 0;
    for (std::size_t k = 0; k < list.steps.size(); ++k) {
        if (list.steps[k].verb == Verb::run) {
            if (timeline.start[k] > busy_until) {
                gaps.emplace_back(busy_until, timeline.start[k]);
            }
            busy_until = timeline.end[k];
        }
    }
    std::vector<std::size_t> map_of(graph.tensors().size());
    for (std::size_t m = 0; m < search.maps().size(); ++m) {
        map_of[at(search.maps()[m])] = m;
    }
    Stalling found{std::vector<std::uint8_t>(search.maps().size(), 0), {}};
    found.in = found.out;
    for (std::size_t k = 0; k < list.steps.size(); ++k) {
        const Step& step = list.steps[k];
        if (step.verb != Verb::offload && step.verb != Verb::prefetch) {
            continue;
        }
        const Seconds start = timeline.start[k], end = timeline.end[k];
        Seconds met = 0;
        auto gap = std::lower_bound(gaps.begin(), gaps.end(), start,
                                    [](const auto& one, Seconds time) { return one.second <= time; });
        for (; gap != gaps.end() && gap->first < end; ++gap) {
            met += std::min(end, gap->second) - std::max(start, gap->first);
        }
        if (met > 1e-3 * (end - start)) {
            (step.verb == Verb::offload ? found.out : found.in)[map_of[at(step.id)]] = 1;
        }
    }
    return found;
}

// If not all maps can be offloaded (no link, or a small host): the best of several mixtures. They offload as many maps
// as the host takes, the first or the largest ones; of the rest they keep every k-th and, if allowed, recompute the
// others. The second is the best of those that recompute none, from which `swap_opt` starts. None if none fits.
std::vector<ClassSolution> mixed_starts(const Graph& graph, const Device& device, bool recompute, ClassSearch& search) {
    const std::vector<TensorId>& maps = search.maps();
    std::vector<std::size_t> order(maps.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::vector<Classes> sent{Classes(maps.size(), MapClass::recompute)};
    for (int round = 0; round < 2 && device.d2h > 0 && device.h2d > 0; ++round) {
        Bytes room = device.host_memory.value_or(std::numeric_limits<Bytes>::max());
        sent.push_back(sent[0]);
        for (const std::size_t m : order) {
            const Bytes own = graph.tensor(maps[m]).bytes;
            if (own <= room) {
                room -= own;
                sent.back()[m] = MapClass::swap;
            }
        }
        std::ranges::stable_sort(order, {}, [&](std::size_t m) { return -graph.tensor(maps[m]).bytes; });
    }
    ClassSolution best{{}, {}, Simulator::illegal}, keeping = best;
    for (const Classes& base : sent) {
        for (std::size_t stride = 1; stride <= (recompute ? maps.size() + 1 : 1); stride += (stride + 3) / 4) {
            if (search.stopped(0)) { // lists that never fit take milliseconds each
                break;
            }
            Classes classes = base;
            std::size_t rest = 0;
            for (MapClass& one : classes) {
                if (one == MapClass::recompute && ++rest % stride == 0) {
                    one = MapClass::keep;
                }
            }
            const ClassSolution found = search.with_best_rule(std::move(classes));
            best = clearly_less(found.makespan, best.makespan) ? found : best;
            keeping = stride == 1 && clearly_less(found.makespan, keeping.makespan) ? found : keeping;
        }
    }
    if (best.makespan == Simulator::illegal) {
        if (search.stopped(0)) { // a list was perhaps abandoned
            throw Stopped{};
        }
        return {};
    }
    const bool alike = keeping.makespan == Simulator::illegal || keeping.classes == best.classes;
    return alike ? std::vector{best} : std::vector{best, keeping};
}

// Step 1: which of the maps whose transfers stall are kept.
class KeepSearch {
  public:
    KeepSearch(ClassSearch& search, const Stalling& stalling, const PoochOptions& options)
        : search_(search), options_(options) {
        for (std::size_t m = search.maps().size(); m-- > 0;) { // from the output layer
            if (stalling.in[m]) {
                levels_.push_back(m);
            } else if (stalling.out[m]) {
                rest_.push_back(m);
            }
        }
    }

    ClassSolution best(const ClassSolution& start) {
        const Classes& base = start.classes;
        if (levels_.size() <= at(options_.tree)) {
            grow(base, 0);
        } else {
            walk(base);
        }
        ClassSolution best = start;
        for (ClassSolution& leaf : with_rest()) {
            if (leaf.makespan < best.makespan) {
                best = std::move(leaf);
            }
        }
        return best;
    }

  private:
    // All ways to keep or swap, "keep" first.
    void grow(const Classes& classes, std::size_t level) {
        if (level == levels_.size() || search_.stopped(0)) {
            leaves_.push_back(classes);
            return;
        }
        const Classes kept = with_kept(classes, levels_[level]);
        if (search_.makespan(kept) < Simulator::illegal) {
            grow(kept, level + 1);
        }
        grow(classes, level + 1);
    }

    // A few of these: the fastest so far, and one that keeps as much as fits.
    void walk(const Classes& base) {
        std::vector<std::pair<Seconds, Classes>> states{{search_.makespan(base), base}};
        Classes greedy = base;
        bool full = false;
        for (std::size_t level = 0; level < levels_.size(); ++level) {
            if (search_.stopped(0.2 * static_cast<double>(level) / static_cast<double>(levels_.size()))) {
                break;
            }
            std::vector<ClassQuestion> questions;
            for (const auto& [makespan, classes] : states) {
                questions.push_back({with_kept(classes, levels_[level]), 0});
            }
            if (!full) {
                questions.push_back({with_kept(greedy, levels_[level]), 0});
            }
            const std::vector<Seconds> found = search_.makespans(questions);
            if (!full) {
                full = found.back() == Simulator::illegal;
                greedy = full ? greedy : questions.back().classes;
                questions.pop_back();
            }
            for (std::size_t k = 0; k < questions.size(); ++k) {
                if (found[k] < Simulator::illegal) {
                    states.emplace_back(found[k], std::move(questions[k].classes));
                }
            }
            std::ranges::stable_sort(states, {}, &std::pair<Seconds, Classes>::first);
            states.resize(std::min(states.size(), at(options_.beam)));
        }
        for (auto& [makespan, classes] : states) {
            leaves_.push_back(std::move(classes));
        }
        leaves_.push_back(std::move(greedy));
    }

    // For each leaf, keep the first maps of which only the offload stalls, as many as give the least makespan; more on
    // ties.
    std::vector<ClassSolution> with_rest() {
        std::vector<ClassQuestion> states;
        for (Classes& leaf : leaves_) {
            states.push_back({std::move(leaf), 0});
        }
        std::vector<Seconds> now = search_.makespans(states);
        std::vector<ClassSolution> best;
        for (std::size_t k = 0; k < states.size(); ++k) {
            best.push_back({states[k].classes, {}, now[k]});
        }
        for (const std::size_t m : rest_) {
            std::vector<std::size_t> alive; // leaves in which one more map may fit
            std::vector<ClassQuestion> questions;
            for (std::size_t k = 0; k < states.size(); ++k) {
                if (now[k] < Simulator::illegal) {
                    alive.push_back(k);
                    states[k].classes[m] = MapClass::keep;
                    questions.push_back(states[k]);
                }
            }
            const std::vector<Seconds> found = search_.makespans(questions);
            for (std::size_t q = 0; q < alive.size(); ++q) {
                const std::size_t k = alive[q];
                now[k] = found[q];
                if (now[k] < Simulator::illegal && !clearly_less(best[k].makespan, now[k])) {
                    best[k] = {states[k].classes, {}, now[k]};
                }
            }
        }
        return best;
    }

    static Classes with_kept(Classes classes, std::size_t m) {
        classes[m] = MapClass::keep;
        return classes;
    }

    ClassSearch& search_;
    const PoochOptions& options_;
    std::vector<std::size_t> levels_, rest_;
    std::vector<Classes> leaves_;
};

// Step 2: recompute maps instead of swapping them, those with the least ratio of the two overheads first. Overheads are
// measured against a plan that keeps the map for free.
ClassSolution with_recomputation(const Graph& graph, ClassSearch& search, ClassSolution best) {
    std::vector<std::size_t> candidates;
    for (std::size_t m = 0; m < best.classes.size(); ++m) {
        if (best.classes[m] == MapClass::swap) {
            candidates.push_back(m);
        }
    }
    const std::size_t all = candidates.size();
    while (!candidates.empty()) {
        const double fraction = 0.2 + 0.8 * (1 - static_cast<double>(candidates.size()) / static_cast<double>(all));
        const auto with = [&](std::size_t m, MapClass one, Bytes more) {
            ClassQuestion question{best.classes, more};
            question.classes[m] = one;
            return question;
        };
        const std::vector<Seconds> again = search.makespans(
            candidates.size(), [&](std::size_t k) { return with(candidates[k], MapClass::recompute, 0); });
        if (search.stopped(fraction)) {
            break;
        }
        std::vector<std::size_t> faster;
        std::vector<Seconds> recomputed;
        for (std::size_t k = 0; k < candidates.size(); ++k) {
            if (clearly_less(again[k], best.makespan)) {
                const std::size_t m = candidates[k];
                faster.push_back(m);
                recomputed.push_back(again[k]);
            }
        }
        if (faster.empty()) {
            break;
        }
        const std::vector<Seconds> free = search.makespans(faster.size(), [&](std::size_t k) {
            return with(faster[k], MapClass::keep, graph.tensor(search.maps()[faster[k]]).bytes);
        });
        if (search.stopped(fraction)) {
            break;
        }
        std::size_t chosen = 0;
        double least = std::numeric_limits<double>::infinity();
        for (std::size_t k = 0; k < faster.size(); ++k) {
            const Seconds swapping = best.makespan - free[k], recomputing = recomputed[k] - free[k];
            const double ratio = swapping > 0 ? recomputing / swapping : 1; // otherwise both are better than free
            if (ratio < least || (ratio == least && recomputed[k] < recomputed[chosen])) {
                least = ratio;
                chosen = k;
            }
        }
        best.classes[faster[chosen]] = MapClass::recompute;
        best.makespan = recomputed[chosen];
        best.rule = {};
        faster.erase(faster.begin() + static_cast<std::ptrdiff_t>(chosen));
        candidates = std::move(faster);
    }
    return best;
}

// With the best fetch rule for the classes.
ClassSolution settled(ClassSearch& search, ClassSolution found) {
    if (search.stopped(1)) {
        return found;
    }
    ClassSolution best = search.with_best_rule(found.classes);
    return clearly_less(best.makespan, found.makespan) ? best : found;
}

// Keeps more maps, from the output layer, while this fits and costs nothing.
void keep_what_fits(ClassSearch& search, ClassSolution& best) {
    for (std::size_t m = best.classes.size(); m-- > 0;) {
        if (best.classes[m] == MapClass::swap && !search.stopped(1)) {
            Classes kept = best.classes;
            kept[m] = MapClass::keep;
            const Seconds makespan = search.makespan(kept, best.rule);
            if (makespan == Simulator::illegal) {
                return;
            }
            if (!clearly_less(best.makespan, makespan)) {
                best.classes = std::move(kept);
                best.makespan = makespan;
            }
        }
    }
}

} // namespace

std::optional<PoochSolution> pooch(const Graph& graph, const Device& device, bool recompute,
                                   const PoochOptions& options, Workers& workers, const Progress& progress) {
    ClassSearch search(graph, device, workers, progress);
    const auto solution = [&](const ClassSolution& best) { return PoochSolution{best, search.evaluations()}; };
    std::vector<ClassSolution> starts{search.with_best_rule(Classes(search.maps().size(), MapClass::swap))};
    ClassSolution found{Classes(search.maps().size(), MapClass::keep), {}, 0};
    found.makespan = search.makespan(found.classes);
    if (found.makespan < Simulator::illegal) { // nothing stalls
        return solution(found);
    }
    Stalling stalling;
    if (starts[0].makespan < Simulator::illegal) {
        if (search.stopped(0)) {
            return solution(starts[0]);
        }
        stalling = stalling_maps(graph, device, search);
    } else {
        starts = mixed_starts(graph, device, recompute, search);
        if (starts.empty()) {
            return std::nullopt;
        }
        stalling.in.assign(search.maps().size(), 1);
        stalling.out = stalling.in;
    }
    for (const ClassSolution& start : starts) {
        ClassSolution one = settled(search, KeepSearch(search, stalling, options).best(start));
        if (recompute) {
            one = settled(search, with_recomputation(graph, search, std::move(one)));
            if (options.fill) {
                keep_what_fits(search, one);
            }
        }
        if (one.makespan < found.makespan) {
            found = std::move(one);
        }
    }
    return solution(found);
}

} // namespace memsched
