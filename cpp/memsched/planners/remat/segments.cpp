#include "memsched/planners/remat/segments.h"

#include "memsched/support/simd.h"

#include <algorithm>
#include <cassert>

namespace memsched {
namespace {

constexpr Bytes block = 64; // slots that are skipped together

// out[m] = min(out[m], cost + upper[m] + lower[m]) for m < count. All three rows fall with m, so the last slot of a
// block bounds its sums from below and the first one its results from above.
MEMSCHED_CLONES void relax(float* __restrict out, const float* __restrict upper, const float* __restrict lower,
                           float cost, Bytes count) {
    for (Bytes begin = 0; begin < count; begin += block) {
        const Bytes end = std::min(begin + block, count);
        if (cost + upper[end - 1] + lower[end - 1] >= out[begin]) {
            continue;
        }
        for (Bytes m = begin; m < end; ++m) {
            const float value = cost + upper[m] + lower[m];
            out[m] = value < out[m] ? value : out[m];
        }
    }
}

} // namespace

SegmentTable::SegmentTable(const RematChain& chain, Bytes capacity, int slots, Workers& workers,
                           const Progress& progress)
    : chain_(chain), capacity_(capacity), width_(std::max<Bytes>(1, capacity / slots)),
      slots_(static_cast<int>(capacity / width_)), stride_((static_cast<std::size_t>(slots_) + 16) / 16 * 16),
      checkpoint_(chain.activation.size()) {
    const int n = chain.layers;
    const auto cells = static_cast<std::size_t>(n) * static_cast<std::size_t>(n + 1) / 2;
    values_.assign(cells * stride_, no_fit);
    progress.tick(0);
    least_.assign(cells, slots_ + 1);
    for (std::size_t k = 0; k < checkpoint_.size(); ++k) {
        checkpoint_[k] = covering(chain.activation[k]);
    }
    forwards_.resize(static_cast<std::size_t>(n) + 1);
    for (int i = 1; i <= n; ++i) {
        Bytes largest = chain.need_first(i);
        for (int k = i; k <= n; ++k) {
            largest = k == i ? largest : std::max(largest, chain.need_next(k));
            forwards_[static_cast<std::size_t>(i)].push_back(largest);
        }
    }
    for (int length = 0; length < n; ++length) {
        workers.each(n - length, [&](int index, int) { fill(index + 1, index + 1 + length); });
        if (progress.tick(static_cast<double>(length) / n) && length + 1 < n) {
            complete_ = false;
            return;
        }
    }
}

Bytes SegmentTable::forwards_need(int first, int last, int end) const {
    return covering(chain_.gradient[RematChain::at(end)] +
                    forwards_[static_cast<std::size_t>(first)][static_cast<std::size_t>(last - first)]);
}

void SegmentTable::fill(int first, int last) {
    const Bytes end = slots_ + 1;
    float* out = values_.data() + cell(first, last) * stride_;
    const Bytes all = std::max(covering(chain_.need_all(first) + chain_.gradient[RematChain::at(last)]),
                               covering(chain_.need_backward(first)));
    if (first == last) {
        for (Bytes m = std::min(all, end); m < end; ++m) {
            out[m] = 0;
        }
        least_[cell(first, last)] = static_cast<int>(std::min(all, end));
        return;
    }
    const Bytes saved = covering(chain_.saved[RematChain::at(first)]);
    const Bytes from_all = std::max(all, saved + least(first + 1, last));
    const float* rest = row(first + 1, last);
    for (Bytes m = from_all; m < end; ++m) {
        out[m] = rest[m - saved];
    }
    // The value falls with the memory, so what a checkpoint after layer k cannot improve, for it costs the forwards up
    // to k once more, is a range of slots that grows with k.
    Bytes to = end;
    for (int k = first; k < last; ++k) {
        const auto cost = static_cast<float>(chain_.forward_sum(first, k));
        while (to > 0 && out[to - 1] <= cost) {
            --to;
        }
        const Bytes shift = checkpoint_[RematChain::at(k)];
        const Bytes from =
            std::max({forwards_need(first, k, last), shift + least(k + 1, last), Bytes{least(first, k)}});
        if (from < to) {
            relax(out + from, row(k + 1, last) + (from - shift), row(first, k) + from, cost, to - from);
        }
    }
    least_[cell(first, last)] =
        static_cast<int>(std::find_if(out, out + end, [](float v) { return v < no_fit; }) - out);
}

SegmentChoice SegmentTable::choice(int first, int last, int free) const {
    const float best = extra(first, last, free);
    assert(best < no_fit);
    const Bytes saved = covering(chain_.saved[RematChain::at(first)]);
    const Bytes all = std::max(covering(chain_.need_all(first) + chain_.gradient[RematChain::at(last)]),
                               covering(chain_.need_backward(first)));
    if (first == last ||
        (free >= all && free >= saved && extra(first + 1, last, free - static_cast<int>(saved)) == best)) {
        return {true, first};
    }
    for (int k = first; k < last; ++k) {
        const Bytes shift = checkpoint_[RematChain::at(k)];
        if (free >= std::max(shift, forwards_need(first, k, last)) &&
            static_cast<float>(chain_.forward_sum(first, k)) + extra(k + 1, last, free - static_cast<int>(shift)) +
                    extra(first, k, free) ==
                best) {
            return {false, k};
        }
    }
    assert(false);
    return {true, first};
}

void SegmentTable::append(int first, int last, int free, std::vector<RematOp>& sequence) const {
    const SegmentChoice begin = choice(first, last, free);
    if (begin.all) {
        sequence.push_back({first, true, true});
        if (first < last) {
            append(first + 1, last, free - static_cast<int>(covering(chain_.saved[RematChain::at(first)])), sequence);
        }
        sequence.push_back({first, false, true});
        return;
    }
    for (int k = first; k <= begin.last; ++k) {
        sequence.push_back({k, true, false});
    }
    const auto shift = static_cast<int>(checkpoint_[RematChain::at(begin.last)]);
    append(begin.last + 1, last, free - shift, sequence);
    append(first, begin.last, free, sequence);
}

std::optional<RotorPlan> rotor(const SegmentTable& table, Bytes capacity) {
    const RematChain& chain = table.chain();
    const int free = table.fitting(capacity - chain.activation[0]);
    if (free < table.least(1, chain.layers)) {
        return std::nullopt;
    }
    RotorPlan plan;
    plan.time = chain.ideal(1, chain.layers) + static_cast<Seconds>(table.extra(1, chain.layers, free));
    table.append(1, chain.layers, free, plan.sequence);
    return plan;
}

} // namespace memsched
