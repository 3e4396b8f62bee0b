#include "memsched/build/fetch_places.h"

#include <algorithm>
#include <map>
#include <stdexcept>

namespace memsched {
namespace {

using Kind = FetchRule::Kind;

Verb verb(WalkEvent::What what) {
    return what == WalkEvent::run ? Verb::run : what == WalkEvent::offload ? Verb::offload : Verb::free;
}

} // namespace

FetchPlaces::FetchPlaces(const Graph& graph, OpId turn) : graph_(graph), turn_(turn) {
    for (const Op& op : graph.ops()) {
        if (op.choices.size() > 1) {
            throw std::invalid_argument("op '" + op.name + "' has several algorithms; fix one before");
        }
    }
}

// A fetch belongs to the first run that reads its tensor: only from then on must the tensor be there.
void FetchPlaces::attribute(Walk& walk) {
    walk.runs.clear();
    walk.usage.clear();
    walk.fetches.clear();
    freed_.assign(graph_.tensors().size(), 0);
    waiting_.assign(graph_.tensors().size(), 0);
    Bytes live = source_bytes(graph_);
    std::int32_t asked = 0;
    for (WalkEvent& event : walk.events) {
        const auto position = static_cast<std::int32_t>(walk.runs.size());
        if (event.what == WalkEvent::run) {
            const Op& op = graph_.op(event.id);
            const auto before = static_cast<std::ptrdiff_t>(walk.fetches.size());
            for (const TensorId t : op.reads) {
                if (waiting_[at(t)] > 0) {
                    walk.fetches.push_back({t, position, freed_[at(t)], waiting_[at(t)]});
                    waiting_[at(t)] = 0;
                    live += graph_.tensor(t).bytes;
                }
            }
            std::sort(walk.fetches.begin() + before, walk.fetches.end(),
                      [](const Fetch& a, const Fetch& b) { return a.at < b.at; });
            live += written_bytes(graph_, op);
            walk.usage.push_back(live + op.choices[0].workspace);
            walk.runs.push_back(event.id);
        } else if (event.what == WalkEvent::fetch) {
            waiting_[at(event.id)] = ++asked;
        } else if (event.what == WalkEvent::free && waiting_[at(event.id)] > 0) {
            waiting_[at(event.id)] = 0;
            event.what = WalkEvent::fetch; // dropped before anybody read it: neither happens
        } else if (event.what == WalkEvent::free) {
            live -= graph_.tensor(event.id).bytes;
            freed_[at(event.id)] = position;
        }
    }
}

void FetchPlaces::find_layers(const Walk& walk) {
    if (layer_.empty()) {
        std::map<int, std::int32_t> layers;
        for (const Op& op : graph_.ops()) {
            layer_.push_back(layers.emplace(op.layer, static_cast<std::int32_t>(layers.size())).first->second);
        }
        first_run_.resize(layers.size());
    }
    std::fill(first_run_.begin(), first_run_.end(), -1);
    for (std::size_t q = walk.runs.size(); q-- > 0;) {
        if (walk.runs[q] >= turn_) {
            first_run_[at(layer_[at(walk.runs[q])])] = static_cast<std::int32_t>(q);
        }
    }
}

// The position right after the first run of the layer that many layers before the one that needs it.
std::int32_t FetchPlaces::layers_before(const Walk& walk, std::int32_t need, const FetchRule& rule) const {
    const std::int32_t own = layer_[at(walk.runs[at(need)])];
    std::vector<std::int32_t> passed;
    for (std::int32_t q = need - 1; q >= turn_ && static_cast<int>(passed.size()) < rule.ahead; --q) {
        const OpId op = walk.runs[at(q)];
        const std::int32_t layer = layer_[at(op)];
        if (op < turn_ || layer == own || (rule.kind == Kind::convolutions && graph_.op(op).kind != "conv")) {
            continue;
        }
        if (std::find(passed.begin(), passed.end(), layer) == passed.end()) {
            passed.push_back(layer);
        }
    }
    return passed.empty() ? need : first_run_[at(passed.back())] + 1;
}

// The runs that a fetch may pass lie in a window both ends of which only move on: it begins where the fetch before
// stands, and ends with the run that needs the fetch. What the fetches so far hold in each run of it is all that they
// bring, less what was there as of that run. So the fullest runs of the window, each fuller than all behind it, tell
// how far the fetch may go; those in front of it are never asked for again.
bool FetchPlaces::place(Walk& walk, Bytes capacity, const FetchRule& rule) {
    fullest_.clear();
    std::size_t front = 0;
    std::int32_t position = 0, seen = 0;
    Bytes brought = 0;
    for (Fetch& fetch : walk.fetches) {
        for (; seen < fetch.need; ++seen) {
            const Bytes level = walk.usage[at(seen)] - brought;
            while (fullest_.size() > front && fullest_.back().level <= level) {
                fullest_.pop_back();
            }
            fullest_.push_back({seen, level});
        }
        brought += graph_.tensor(fetch.tensor).bytes;
        const std::int32_t wanted = rule.kind == Kind::eager    ? 0
                                    : rule.kind == Kind::demand ? fetch.need
                                    : rule.kind == Kind::ops    ? fetch.need - rule.ahead
                                                                : layers_before(walk, fetch.need, rule);
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

bool FetchPlaces::list(Walk& walk, Bytes capacity, const FetchRule& rule, std::span<const std::uint8_t> travels,
                       StepList& list) {
    if (rule.kind == Kind::layers || rule.kind == Kind::convolutions) {
        find_layers(walk);
    }
    if (!place(walk, capacity, rule)) {
        return false;
    }
    list.after.clear();
    list.at.clear();
    list.steps.resize(walk.events.size() + walk.fetches.size());
    auto step = list.steps.begin(); // the next one; what does not happen is written over
    auto fetch = walk.fetches.begin();
    std::int32_t run = 0;
    for (const WalkEvent& event : walk.events) {
        if (event.what == WalkEvent::run) {
            for (; fetch != walk.fetches.end() && fetch->at == run; ++fetch) {
                *step++ = {Verb::prefetch, false, fetch->tensor, 0, -1};
            }
            ++run;
        }
        *step = {verb(event.what), false, event.id, 0, -1};
        const bool moves = event.what == WalkEvent::offload || event.what == WalkEvent::leave;
        step += event.what != WalkEvent::fetch && (!moves || travels.empty() || travels[at(event.id)]);
    }
    list.steps.erase(step, list.steps.end());
    return true;
}

} // namespace memsched
