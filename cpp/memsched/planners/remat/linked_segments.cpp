#include "memsched/planners/remat/linked_segments.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace memsched {
namespace {

constexpr std::size_t values_per_pause = 1 << 10;
constexpr double rounding = 1e-7; // of a slot: smaller errors of a sum of times cost no slot

} // namespace

LinkedSegments::LinkedSegments(const SegmentTable& table, Bandwidth bandwidth, std::function<void()> pause)
    : table_(table), chain_(table.chain()), speed_(bandwidth / static_cast<double>(table.width())),
      pause_(std::move(pause)), forwards_(at(chain_.layers) + 1), entries_(std::size_t{1} << 16) {
    backward_.push_back(0);
    for (int i = 1; i <= chain_.layers; ++i) {
        backward_.push_back(in_slots(chain_.need_backward(i)));
        double need = in_slots(chain_.need_first(i));
        auto& row = forwards_[at(i)];
        row.push_back(need);
        for (int k = i + 1; k <= chain_.layers; ++k) {
            const Seconds time = chain_.forward[at(k)];
            need = std::max(time > 0 ? need - speed_ * time : need, in_slots(chain_.need_next(k)));
            row.push_back(need);
        }
    }
}

Bytes LinkedSegments::owed_before(Bytes owed, Seconds duration) const {
    if (owed == 0 || std::isinf(speed_)) {
        return 0;
    }
    const double left = static_cast<double>(owed) - speed_ * duration;
    return left > 0 ? static_cast<Bytes>(std::ceil(left - rounding)) : 0;
}

std::uint64_t LinkedSegments::key(int first, int last, int free, Bytes owed) const {
    const auto n = static_cast<std::uint64_t>(chain_.layers) + 1, s = static_cast<std::uint64_t>(table_.slots()) + 1;
    return ((static_cast<std::uint64_t>(first) * n + static_cast<std::uint64_t>(last)) * s +
            static_cast<std::uint64_t>(free)) *
               s +
           static_cast<std::uint64_t>(owed);
}

LinkedSegments::Entry* LinkedSegments::slot(std::uint64_t key) {
    const std::size_t mask = entries_.size() - 1;
    std::size_t place = static_cast<std::size_t>((key * 0x9E3779B97F4A7C15ULL) >> 20) & mask;
    while (entries_[place].key != 0 && entries_[place].key != key) {
        place = (place + 1) & mask;
    }
    return &entries_[place];
}

void LinkedSegments::grow() {
    std::vector<Entry> old(entries_.size() * 2);
    old.swap(entries_);
    for (const Entry& entry : old) {
        if (entry.key != 0) {
            *slot(entry.key) = entry;
        }
    }
}

Seconds LinkedSegments::time(int first, int last, int free, Bytes owed) {
    const float* row = table_.row(first, last);
    const float least = row[free];
    const Seconds ideal = chain_.ideal(first, last);
    if (std::isinf(least) || owed > free) {
        return never;
    }
    if (owed == 0 || std::isinf(speed_) || row[free - owed] == least) {
        return ideal + static_cast<Seconds>(least); // room for what is owed from the start costs nothing
    }
    const std::uint64_t id = key(first, last, free, owed);
    if (const Entry* found = slot(id); found->key == id) {
        return found->time;
    }
    const Seconds time = best(first, last, free, owed).time;
    if (4 * (used_ + 1) > 3 * entries_.size()) {
        grow();
    }
    *slot(id) = {id, time};
    if (++used_ % values_per_pause == 0 && pause_) {
        pause_();
    }
    return time;
}

// F_all, then the rest, then B. Seen from the end, B waits first for what is owed, then the rest does, then F_all.
Seconds LinkedSegments::saving(int first, int last, int free, Bytes owed) {
    const auto i = at(first);
    if (table_.covering(chain_.need_saving(first, last)) > free) {
        return never;
    }
    const double all = in_slots(chain_.need_all(first) + chain_.gradient[at(last)]);
    const Seconds back = backward(first, free, owed);
    if (first == last) {
        // Forward and backward wait for the same data, so only the longer wait counts. When the forward ends, what
        // arrives during the backward is not there yet.
        const double arrives = chain_.backward[i] > 0 ? speed_ * chain_.backward[i] : 0.0;
        return chain_.forward[i] + std::max(back, chain_.backward[i] + wait(all - arrives, free, owed));
    }
    const Bytes saved = table_.covering(chain_.saved[i]);
    if (saved > free) {
        return never;
    }
    const Bytes before_backward = owed_before(owed, back);
    const Seconds rest = time(first + 1, last, free - static_cast<int>(saved), before_backward);
    if (rest == never) {
        return never;
    }
    const Bytes before_rest = owed_before(before_backward, rest);
    return chain_.forward[i] + wait(all, free, before_rest) + rest + back;
}

// Forwards up to `split`, then the layers after it, then those up to it.
Seconds LinkedSegments::checkpoint(int first, int split, int last, int free, Bytes owed) {
    const Bytes shift = table_.covering(chain_.activation[at(split)]);
    if (std::max(shift, table_.forwards_need(first, split, last)) > free) {
        return never;
    }
    const Seconds lower = time(first, split, free, owed);
    if (lower == never) {
        return never;
    }
    const Bytes before_lower = owed_before(owed, lower);
    const Seconds upper = time(split + 1, last, free - static_cast<int>(shift), before_lower);
    if (upper == never) {
        return never;
    }
    const Bytes before_upper = owed_before(before_lower, upper);
    const double need = forwards_[at(first)][at(split - first)] + in_slots(chain_.gradient[at(last)]);
    return chain_.forward_sum(first, split) + wait(need, free, before_upper) + upper + lower;
}

LinkedSegments::Best LinkedSegments::best(int first, int last, int free, Bytes owed) {
    Best best{saving(first, last, free, owed), {true, first}};
    if (first == last) {
        return best;
    }
    // A split takes at least as long as with nothing owed: they are tried in this order until none can be better.
    const Seconds ideal = chain_.ideal(first, last);
    const std::size_t begin = candidates_.size();
    for (int k = first; k < last; ++k) {
        const Bytes shift = table_.covering(chain_.activation[at(k)]);
        const Seconds cost = chain_.forward_sum(first, k);
        if (ideal + cost >= best.time) {
            break;
        }
        if (shift <= free) {
            const auto upper = static_cast<Seconds>(table_.extra(k + 1, last, free - static_cast<int>(shift)));
            const Seconds bound = cost + least(first, k, free, owed) + chain_.ideal(k + 1, last) + upper;
            if (bound < best.time) {
                candidates_.emplace_back(bound, k);
            }
        }
    }
    std::sort(candidates_.begin() + static_cast<std::ptrdiff_t>(begin), candidates_.end());
    const std::size_t end = candidates_.size();
    for (std::size_t at = begin; at < end; ++at) {
        const auto [bound, k] = candidates_[at];
        if (bound >= best.time) {
            break;
        }
        const Seconds found = checkpoint(first, k, last, free, owed);
        if (found < best.time) {
            best = {found, {false, k}};
        }
    }
    candidates_.resize(begin);
    return best;
}

Seconds LinkedSegments::append(int first, int last, int free, Bytes owed, std::vector<RematOp>& sequence) {
    const Best found = best(first, last, free, owed);
    assert(found.time < never);
    if (found.begin.all) {
        sequence.push_back({first, true, true});
        if (first < last) {
            append(first + 1, last, free - static_cast<int>(table_.covering(chain_.saved[at(first)])),
                   owed_before(owed, backward(first, free, owed)), sequence);
        }
        sequence.push_back({first, false, true});
        return found.time;
    }
    const int split = found.begin.last;
    append_forwards(first, split, false, sequence);
    const auto shift = static_cast<int>(table_.covering(chain_.activation[at(split)]));
    const Bytes before_lower = owed_before(owed, time(first, split, free, owed));
    append(split + 1, last, free - shift, before_lower, sequence);
    append(first, split, free, owed, sequence);
    return found.time;
}

} // namespace memsched
