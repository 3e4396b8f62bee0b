#include "memsched/build/fetch_places.h"

#include <algorithm>
#include <map>
#include <stdexcept>

namespace memsched {
namespace {

using Kind = FetchRule::Kind;

Verb verb(PlanEvent::What what) {
    return what == PlanEvent::run       ? Verb::run
           : what == PlanEvent::offload ? Verb::offload
           : what == PlanEvent::update  ? Verb::update
                                        : Verb::free;
}

} // namespace

FetchPlaces::FetchPlaces(const Graph& graph, OpId turn) : graph_(graph), turn_(turn) {
    for (const Op& op : graph.ops()) {
        if (op.choices.size() > 1) {
            throw std::invalid_argument("op '" + op.name + "' has several algorithms; fix one before");
        }
        written_.push_back(written_bytes(graph, op));
    }
}

// A fetch belongs to the first run that reads its tensor: the tensor must be present only from then on.
void FetchPlaces::attribute(Outline& outline, std::optional<Bytes> at_start) {
    outline.runs.clear();
    outline.usage.clear();
    outline.fetches.clear();
    freed_.assign(graph_.tensors().size(), 0);
    waiting_.assign(graph_.tensors().size(), 0);
    Bytes live = at_start ? *at_start : source_bytes(graph_);
    std::int32_t asked = 0;
    for (PlanEvent& event : outline.events) {
        const auto position = static_cast<std::int32_t>(outline.runs.size());
        if (event.what == PlanEvent::run) {
            const Op& op = graph_.op(event.id);
            const auto before = static_cast<std::ptrdiff_t>(outline.fetches.size());
            for (const TensorId t : op.reads) {
                if (waiting_[at(t)] > 0) {
                    outline.fetches.push_back({t, position, freed_[at(t)], waiting_[at(t)]});
                    waiting_[at(t)] = 0;
                    live += graph_.tensor(t).bytes;
                }
            }
            std::ranges::sort(outline.fetches.begin() + before, outline.fetches.end(), {}, &Fetch::at);
            live += written_[at(event.id)] - (event.skip ? bytes_of(graph_, op.tape) : 0);
            outline.usage.push_back(live + workspace(op, 0, event.skip));
            outline.runs.push_back(event.id);
        } else if (event.what == PlanEvent::update) {
            const Op& op = graph_.op(event.id);
            for (const auto* changed : {&op.updates, &op.writes}) {
                for (const TensorId t : *changed) {
                    freed_[at(t)] = position; // what is fetched before is stale
                }
            }
        } else if (event.what == PlanEvent::fetch) {
            waiting_[at(event.id)] = ++asked;
        } else if (event.what == PlanEvent::free && waiting_[at(event.id)] > 0) {
            waiting_[at(event.id)] = 0;
            event.what = PlanEvent::fetch; // dropped before it was read: neither happens
        } else if (event.what == PlanEvent::free) {
            live -= graph_.tensor(event.id).bytes;
            freed_[at(event.id)] = position;
        }
    }
}

void FetchPlaces::find_layers(const Outline& outline) {
    if (layer_.empty()) {
        std::map<int, std::int32_t> layers;
        for (const Op& op : graph_.ops()) {
            layer_.push_back(layers.emplace(op.layer, static_cast<std::int32_t>(layers.size())).first->second);
        }
        first_run_.resize(layers.size());
    }
    std::ranges::fill(first_run_, -1);
    earlier_.assign(first_run_.size() + 1, -1);
    later_.assign(first_run_.size() + 1, -1);
    earlier_.back() = later_.back() = static_cast<std::int32_t>(first_run_.size());
    passed_ = std::min(turn_, static_cast<std::int32_t>(outline.runs.size()));
    for (std::size_t q = outline.runs.size(); q-- > 0;) {
        if (outline.runs[q] >= turn_) {
            first_run_[at(layer_[at(outline.runs[q])])] = static_cast<std::int32_t>(q);
        }
    }
}

// The position right after the first run of the layer `rule.ahead` layers before the one that needs the fetch. Needs
// come in order.
std::int32_t FetchPlaces::layers_before(const Outline& outline, std::int32_t need, const FetchRule& rule) {
    const auto ring = static_cast<std::int32_t>(first_run_.size());
    for (; passed_ < need; ++passed_) {
        const OpId op = outline.runs[at(passed_)];
        if (op >= turn_ && (rule.kind != Kind::convolutions || graph_.op(op).kind == "conv")) {
            const std::int32_t layer = layer_[at(op)];
            if (later_[at(layer)] >= 0) {
                later_[at(earlier_[at(layer)])] = later_[at(layer)];
                earlier_[at(later_[at(layer)])] = earlier_[at(layer)];
            }
            earlier_[at(layer)] = earlier_[at(ring)];
            later_[at(layer)] = ring;
            later_[at(earlier_[at(ring)])] = layer;
            earlier_[at(ring)] = layer;
        }
    }
    const std::int32_t own = layer_[at(outline.runs[at(need)])];
    std::int32_t found = need;
    int left = rule.ahead;
    for (std::int32_t layer = earlier_[at(ring)]; left > 0 && layer != ring; layer = earlier_[at(layer)]) {
        if (layer != own) {
            found = first_run_[at(layer)] + 1;
            --left;
        }
    }
    return found;
}

// The runs that a fetch may pass form a window whose two ends only move forward: it begins at the place of the previous
// fetch and ends with the run that needs the fetch. The bytes that earlier fetches hold in a run of the window are all
// that they bring, minus what was needed by then. So the fullest runs of the window, each fuller than all after it,
// tell how far the fetch may move forward; earlier runs are never considered again.
bool FetchPlaces::place(Outline& outline, Bytes capacity, const FetchRule& rule) {
    fullest_.clear();
    std::size_t front = 0;
    std::int32_t position = 0, seen = 0;
    Bytes brought = 0;
    for (Fetch& fetch : outline.fetches) {
        for (; seen < fetch.need; ++seen) {
            const Bytes level = outline.usage[at(seen)] - brought;
            while (fullest_.size() > front && fullest_.back().level <= level) {
                fullest_.pop_back();
            }
            fullest_.push_back({seen, level});
        }
        brought += graph_.tensor(fetch.tensor).bytes;
        const std::int32_t wanted = rule.kind == Kind::eager    ? 0
                                    : rule.kind == Kind::demand ? fetch.need
                                    : rule.kind == Kind::ops    ? fetch.need - rule.ahead
                                                                : layers_before(outline, fetch.need, rule);
        const std::int32_t target = std::min(std::max({position, fetch.earliest, wanted}), fetch.need);
        position = target;
        while (front < fullest_.size() &&
               (fullest_[front].run < position || fullest_[front].level + brought > capacity)) {
            position = std::max(position, fullest_[front++].run + 1);
        }
        if (position > target && rule.kind != Kind::eager) {
            if (!rule.soft) {
                return false;
            }
            position = fetch.need;
        }
        fetch.at = position;
    }
    return true;
}

bool FetchPlaces::list(Outline& outline, Bytes capacity, const FetchRule& rule, std::span<const std::uint8_t> travels,
                       StepList& list) {
    if (rule.kind == Kind::layers || rule.kind == Kind::convolutions) {
        find_layers(outline);
    }
    if (!place(outline, capacity, rule)) {
        return false;
    }
    list.after.clear();
    list.at.clear();
    list.steps.resize(outline.events.size() + outline.fetches.size());
    auto step = list.steps.begin(); // the next step; skipped events are overwritten
    auto fetch = outline.fetches.begin();
    std::int32_t run = 0;
    for (const PlanEvent& event : outline.events) {
        if (event.what == PlanEvent::run) {
            for (; fetch != outline.fetches.end() && fetch->at == run; ++fetch) {
                *step++ = {Verb::prefetch, false, fetch->tensor, 0, -1};
            }
            ++run;
        }
        *step = {verb(event.what), event.skip, event.id, 0, -1};
        const bool moves = event.what == PlanEvent::offload || event.what == PlanEvent::leave;
        step += event.what != PlanEvent::fetch && (!moves || travels.empty() || travels[at(event.id)]);
    }
    list.steps.erase(step, list.steps.end());
    return true;
}

// Two repetitions one after the other; of the second, the places of its fetches, which may be in the first.
bool FetchPlaces::list_repeated(Outline& outline, std::span<const Copies> border, Bytes capacity, StepList& list) {
    Bytes at_border = 0;
    for (std::size_t t = 0; t < border.size(); ++t) {
        const Tensor& tensor = graph_.tensors()[t];
        at_border += tensor.source() && border[t] != Copies::host ? tensor.bytes : 0;
    }
    const std::size_t once = outline.events.size();
    outline.events.reserve(2 * once);
    outline.events.insert(outline.events.end(), outline.events.begin(),
                          outline.events.begin() + static_cast<std::ptrdiff_t>(once));
    attribute(outline, at_border);
    if (!place(outline, capacity, {})) {
        return false;
    }
    const auto runs = static_cast<std::int32_t>(outline.runs.size() / 2);
    list.steps.clear();
    list.after.clear();
    list.at.clear();
    list.border.clear();
    std::vector<Copies> there(border.begin(), border.end());
    std::vector<std::pair<std::int32_t, TensorId>> places; // the run before which a tensor is fetched
    for (const bool next : {false, true}) {                // those for the next repetition come after all others
        for (const Fetch& fetch : outline.fetches) {
            if (fetch.need >= runs && (fetch.at < runs) == next) {
                places.emplace_back(fetch.at - (next ? 0 : runs), fetch.tensor);
                if (next) {
                    there[at(fetch.tensor)] = Copies::both;
                }
            }
        }
    }
    for (TensorId t = 0; at(t) < there.size(); ++t) {
        if (there[at(t)] != Copies::device) {
            list.border.emplace_back(t, there[at(t)]);
        }
    }
    std::ranges::stable_sort(places, {}, &std::pair<std::int32_t, TensorId>::first);
    auto fetch = places.begin();
    std::int32_t run = 0;
    for (std::size_t k = once; k < 2 * once; ++k) {
        const PlanEvent& event = outline.events[k];
        if (event.what == PlanEvent::run) {
            for (; fetch != places.end() && fetch->first == run; ++fetch) {
                list.prefetch(fetch->second);
            }
            ++run;
        }
        if (event.what != PlanEvent::fetch) {
            list.steps.push_back({verb(event.what), event.skip, event.id, 0, -1});
        }
    }
    return true;
}

} // namespace memsched
