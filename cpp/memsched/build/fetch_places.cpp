#include "memsched/build/fetch_places.h"

#include <algorithm>
#include <map>

namespace memsched {
FetchPlaces::FetchPlaces(const Graph& graph, OpId turn) : graph_(graph), turn_(turn) {
    std::map<int, std::int32_t> layers;
    for (const Op& op : graph.ops()) {
        layer_.push_back(layers.emplace(op.layer, static_cast<std::int32_t>(layers.size())).first->second);
    }
    layers_ = static_cast<std::int32_t>(layers.size());
}

bool FetchPlaces::list(std::vector<WalkEvent>& events, Bytes capacity, const FetchRule& rule, StepList& list) {
    attribute(events);
    if (!place(capacity, rule)) {
        return false;
    }
    emit(events, list);
    return true;
}

// A fetch belongs to the first run that reads its tensor: only from then on must the tensor be there.
void FetchPlaces::attribute(std::vector<WalkEvent>& events) {
    runs_.clear();
    usage_.clear();
    fetches_.clear();
    freed_.assign(graph_.tensors().size(), 0);
    waiting_.assign(graph_.tensors().size(), 0);
    first_run_.assign(at(layers_), -1);
    Bytes live = 0;
    for (std::size_t t = 0; t < graph_.tensors().size(); ++t) {
        const Role role = graph_.tensors()[t].role;
        live += role == Role::input || role == Role::weight ? graph_.tensors()[t].bytes : 0;
    }
    std::int32_t asked = 0;
    for (WalkEvent& event : events) {
        const auto position = static_cast<std::int32_t>(runs_.size());
        if (event.what == WalkEvent::What::run) {
            const Op& op = graph_.op(event.id);
            const std::size_t before = fetches_.size();
            for (const TensorId t : op.reads) {
                if (waiting_[at(t)] > 0) {
                    fetches_.push_back({t, waiting_[at(t)], position, freed_[at(t)], position});
                    waiting_[at(t)] = 0;
                    live += bytes(t);
                }
            }
            std::sort(fetches_.begin() + static_cast<std::ptrdiff_t>(before), fetches_.end(),
                      [](const Fetch& a, const Fetch& b) { return a.asked < b.asked; });
            live += written_bytes(graph_, op);
            usage_.push_back(live + op.choices[0].workspace);
            runs_.push_back(event.id);
            if (std::int32_t& first = first_run_[at(layer_[at(event.id)])]; event.id >= turn_ && first < 0) {
                first = position;
            }
        } else if (event.what == WalkEvent::What::fetch) {
            waiting_[at(event.id)] = ++asked;
        } else if (event.what == WalkEvent::What::free && waiting_[at(event.id)] > 0) {
            waiting_[at(event.id)] = 0;
            event.what = WalkEvent::What::fetch; // dropped before anybody read it: neither happens
        } else if (event.what == WalkEvent::What::free) {
            live -= bytes(event.id);
            freed_[at(event.id)] = position;
        }
    }
}

// The position right after the first run of the layer that many layers before the one that needs it.
std::int32_t FetchPlaces::layers_before(std::int32_t run, const FetchRule& rule) const {
    const std::int32_t own = layer_[at(runs_[at(run)])];
    std::vector<std::int32_t> passed;
    for (std::int32_t q = run - 1; q >= turn_ && static_cast<int>(passed.size()) < rule.layers; --q) {
        const OpId op = runs_[at(q)];
        const std::int32_t layer = layer_[at(op)];
        if (op < turn_ || layer == own || (rule.convolutions && graph_.op(op).kind != "conv")) {
            continue;
        }
        if (std::find(passed.begin(), passed.end(), layer) == passed.end()) {
            passed.push_back(layer);
        }
    }
    return passed.empty() ? run : first_run_[at(passed.back())] + 1;
}

// The runs that a fetch may pass lie in a window both ends of which only move on: it begins where the fetch before
// stands, and ends with the run that needs the fetch. What the fetches so far hold in each run of it is all that they
// bring, less what was there as of that run. So the fullest runs of the window, each fuller than all behind it, tell
// how far the fetch may go; those in front of it are never asked for again.
bool FetchPlaces::place(Bytes capacity, const FetchRule& rule) {
    fullest_.clear();
    std::size_t front = 0;
    std::int32_t position = 0, seen = 0;
    Bytes brought = 0;
    for (Fetch& fetch : fetches_) {
        const Bytes own = bytes(fetch.tensor);
        const std::int32_t least = std::max(position, fetch.earliest);
        for (; seen < fetch.need; ++seen) {
            usage_[at(seen)] -= brought;
            while (fullest_.size() > front && usage_[at(fullest_.back())] <= usage_[at(seen)]) {
                fullest_.pop_back();
            }
            fullest_.push_back(seen);
        }
        const std::int32_t wanted = rule.kind == FetchRule::Kind::demand   ? fetch.need
                                    : rule.kind == FetchRule::Kind::layers ? layers_before(fetch.need, rule)
                                                                           : least;
        const std::int32_t target = std::min(std::max(wanted, least), fetch.need);
        fetch.at = target;
        const Bytes room = capacity - own - brought;
        for (; front < fullest_.size(); ++front) {
            const std::int32_t run = fullest_[front];
            if (run >= target && usage_[at(run)] <= room) {
                break;
            }
            fetch.at = std::max(target, run + 1);
        }
        if (fetch.at > target && rule.kind == FetchRule::Kind::layers) {
            if (!rule.soft) {
                return false;
            }
            fetch.at = fetch.need;
        }
        brought += own;
        position = fetch.at;
    }
    return true;
}

void FetchPlaces::emit(const std::vector<WalkEvent>& events, StepList& list) const {
    list.steps.clear();
    list.after.clear();
    list.at.clear();
    std::size_t next = 0;
    std::int32_t run = 0;
    for (const WalkEvent& event : events) {
        switch (event.what) {
        case WalkEvent::What::run:
            for (; next < fetches_.size() && fetches_[next].at == run; ++next) {
                list.prefetch(fetches_[next].tensor);
            }
            list.run(event.id);
            ++run;
            break;
        case WalkEvent::What::offload:
            list.offload(event.id);
            break;
        case WalkEvent::What::free:
            list.free(event.id);
            break;
        case WalkEvent::What::fetch:
            break;
        }
    }
}

} // namespace memsched
