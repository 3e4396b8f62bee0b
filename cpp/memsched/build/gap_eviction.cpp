// Of GapBuilder: what goes when memory is short, and whether it travels.
#include "memsched/build/gap_builder.h"

#include <algorithm>

namespace memsched {
namespace {

constexpr std::size_t shortlist_size = 64;

} // namespace

void GapBuilder::send(TensorId tensor) {
    State& s = state(tensor);
    if (crosses_border(tensor)) {
        crossed_[at(tensor)] = 1;
    } else if (sends(tensor)) {
        outline_.events.push_back({PlanEvent::offload, tensor});
        link_free_ = sent(tensor);
    } else if (!s.on_host) {
        backed_[at(tensor)] = 1; // it has had its copy since before
    }
    host_left_ -= s.kept ? 0 : fact(tensor).bytes;
    s.on_host = s.kept = true;
    drop(tensor);
}

// When it would be on the host: it may leave right after its last use.
Seconds GapBuilder::sent(TensorId tensor) const {
    return std::max(link_free_, state(tensor).touched) + device_.latency +
           static_cast<double>(fact(tensor).bytes) / device_.d2h;
}

bool GapBuilder::may_travel(TensorId tensor) const {
    return state(tensor).on_host || (link_ && (state(tensor).kept || fact(tensor).bytes <= host_left_));
}

bool GapBuilder::wanted_again(TensorId tensor) {
    return fact(tensor).stays || fact(tensor).persistent || wanted_.next(tensor) != Wanted::never;
}

GapBuilder::Price GapBuilder::price(TensorId tensor) {
    if (fact(tensor).persistent) {
        return price_of_persistent(tensor);
    }
    const State& s = state(tensor);
    const double bytes = static_cast<double>(fact(tensor).bytes);
    Seconds travel = Wanted::impossible;
    if (s.on_host) {
        travel = eviction_.travel * bytes / 2;
    } else if (may_travel(tensor)) {
        travel = eviction_.travel * bytes + std::max(sent(tensor) - clock_, 0.0);
    }
    const Seconds again = fact(tensor).result ? Wanted::impossible : wanted_.again(tensor);
    return travel <= again ? Price{travel, true} : Price{again, false};
}

double GapBuilder::score(TensorId tensor) {
    if (state(tensor).locks > 0) {
        return Wanted::impossible;
    }
    if (!wanted_again(tensor)) {
        return -1;
    }
    const OpId next = std::min(wanted_.next(tensor), static_cast<OpId>(graph_.ops().size()));
    const Seconds unit = begin_.back() > 0 ? begin_.back() : 1;
    const Seconds across = fact(tensor).persistent && at(next) == graph_.ops().size() ? wait_across_border(tensor) : 0;
    const double wait = (begin_[at(next)] + across - begin_[at(now_)]) / unit + 1e-9;
    const double weight = weights_.empty() ? 1.0 : static_cast<double>(weights_[at(tensor)]);
    double score = price(tensor).seconds / unit * weight *
                   (static_cast<double>(capacity_) / static_cast<double>(fact(tensor).bytes));
    for (int k = 0; k < eviction_.roots; ++k) { // to the power of 2^roots, which orders alike
        score *= score;
    }
    return score / wait;
}

TensorId GapBuilder::least_of(const std::vector<TensorId>& among) {
    TensorId found = -1;
    double least = Wanted::impossible;
    pace_.spend(8 * static_cast<std::int64_t>(among.size()));
    for (const TensorId t : among) {
        const double one = state(t).here ? score(t) : Wanted::impossible;
        if (one < least || (one == least && found >= 0 && t < found)) {
            least = one;
            found = t;
        }
    }
    return found;
}

void GapBuilder::shortlist(TensorId tensor) {
    if (!state(tensor).listed && !fact(tensor).small) {
        state(tensor).listed = true;
        shortlist_.push_back(tensor);
    }
}

void GapBuilder::make_shortlist() {
    for (const TensorId t : shortlist_) {
        state(t).listed = false;
    }
    shortlist_.clear();
    scores_.clear();
    pace_.spend(8 * static_cast<std::int64_t>(large_.size()));
    for (const TensorId t : large_) {
        scores_.emplace_back(score(t), t);
    }
    const auto count = std::min(shortlist_size, scores_.size());
    std::nth_element(scores_.begin(), scores_.begin() + static_cast<std::ptrdiff_t>(count), scores_.end());
    for (std::size_t k = 0; k < count; ++k) {
        shortlist(scores_[k].second);
    }
    still_good_ = shortlist_size / 2;
}

TensorId GapBuilder::first_to_go() {
    TensorId found = -1;
    if (large_.size() > 2 * shortlist_size) {
        if (still_good_-- <= 0 || shortlist_.size() > 2 * shortlist_size) {
            make_shortlist();
        }
        found = least_of(shortlist_);
    }
    found = found < 0 ? least_of(large_) : found;
    return found < 0 ? least_of(small_) : found;
}

bool GapBuilder::make_room(Bytes bytes) {
    while (live_ + bytes > capacity_) {
        const TensorId t = first_to_go();
        if (t < 0) {
            return false;
        }
        if (wanted_again(t) && price(t).travels) {
            const bool waits = sends(t);
            send(t);
            clock_ = waits ? std::max(clock_, link_free_) : clock_; // the memory is free then
        } else {
            drop(t);
        }
    }
    return true;
}

} // namespace memsched
