#include "memsched/planners/remat/segments.h"

#include "memsched/support/simd.h"

#include <algorithm>
#include <cassert>

namespace memsched {
namespace {

constexpr Bytes block = 64; // slots that are skipped together
constexpr int tile = 16;    // segments by first and by last layer that are filled together, so that rows are in a cache

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
    : chain_(chain), width_(std::max<Bytes>(1, capacity / slots)), slots_(static_cast<int>(capacity / width_)),
      stride_((static_cast<std::size_t>(slots_) + 16) / 16 * 16), checkpoint_(chain.activation.size()) {
    const int n = chain.layers;
    const auto cells = static_cast<std::size_t>(n) * static_cast<std::size_t>(n + 1) / 2;
    values_.assign(cells * stride_, no_fit);
    progress.tick(0);
    least_.assign(cells, slots_ + 1);
    for (std::size_t k = 0; k < checkpoint_.size(); ++k) {
        checkpoint_[k] = covering(chain.activation[k]);
    }
    forwards_.resize(at(n) + 1);
    for (int i = 1; i <= n; ++i) {
        Bytes largest = chain.need_first(i);
        for (int k = i; k <= n; ++k) {
            largest = k == i ? largest : std::max(largest, chain.need_next(k));
            forwards_[at(i)].push_back(largest);
        }
    }
    // The tiles of one diagonal depend on those nearer to the segments of one layer only.
    const int tiles = (n + tile - 1) / tile, together = 2 * workers.threads(); // between two ticks
    int done = 0;
    for (int distance = 0; distance < tiles; ++distance) {
        for (int begin = 0; begin < tiles - distance; begin += together) {
            const int count = std::min(together, tiles - distance - begin);
            workers.each(count, [&](int index, int) {
                fill_tile((begin + index) * tile + 1, (begin + index + distance) * tile + 1);
            });
            done += count;
            if (progress.tick(2.0 * done / (tiles * (tiles + 1.0))) && distance + 1 < tiles) {
                complete_ = false;
                return;
            }
        }
    }
}

Bytes SegmentTable::forwards_need(int first, int last, int end) const {
    return covering(chain_.gradient[at(end)] + forwards_[at(first)][at(last - first)]);
}

// Segments first .. first + tile - 1 by last .. last + tile - 1. What only needs other tiles comes first, one group of
// checkpoints after the other.
void SegmentTable::fill_tile(int first, int last) {
    const int n = chain_.layers;
    const int first_end = std::min(first + tile, n + 1), last_end = std::min(last + tile, n + 1);
    for (int begin = first + tile; begin < last; begin += tile) {
        for (int i = first; i < first_end; ++i) {
            for (int j = last; j < last_end; ++j) {
                relax_checkpoints(i, j, begin, begin + tile);
            }
        }
    }
    for (int i = first_end - 1; i >= first; --i) {
        for (int j = std::max(i, last); j < last_end; ++j) {
            finish(i, j, first_end, std::max(last, first_end));
        }
    }
}

// With the first layer saved, and with the checkpoints in the same tiles: after layers below `middle` and from `rest`.
void SegmentTable::finish(int first, int last, int middle, int rest) {
    const Bytes end = slots_ + 1;
    float* out = values_.data() + cell(first, last) * stride_;
    const Bytes all = covering(chain_.need_saving(first, last));
    if (first == last) {
        std::fill(out + std::min(all, end), out + end, 0.0f);
        least_[cell(first, last)] = static_cast<int>(std::min(all, end));
        return;
    }
    const Bytes saved = covering(chain_.saved[at(first)]);
    const float* after = row(first + 1, last);
    for (Bytes m = std::max(all, saved + least(first + 1, last)); m < end; ++m) {
        out[m] = std::min(out[m], after[m - saved]);
    }
    relax_checkpoints(first, last, first, std::min(middle, last));
    relax_checkpoints(first, last, rest, last);
    least_[cell(first, last)] =
        static_cast<int>(std::find_if(out, out + end, [](float v) { return v < no_fit; }) - out);
}

// Checkpoints after layers begin .. end - 1. The value falls with the memory, so what a checkpoint after layer k cannot
// improve, for it costs the forwards up to k once more, is a range of slots that grows with k.
void SegmentTable::relax_checkpoints(int first, int last, int begin, int end) {
    if (begin >= end) {
        return;
    }
    float* out = values_.data() + cell(first, last) * stride_;
    const auto above = [&](float value) { return value > static_cast<float>(chain_.forward_sum(first, begin)); };
    Bytes to = std::partition_point(out, out + slots_ + 1, above) - out;
    for (int k = begin; k < end; ++k) {
        const auto cost = static_cast<float>(chain_.forward_sum(first, k));
        while (to > 0 && out[to - 1] <= cost) {
            --to;
        }
        const Bytes shift = checkpoint_[at(k)];
        const Bytes from =
            std::max({forwards_need(first, k, last), shift + least(k + 1, last), Bytes{least(first, k)}});
        if (from < to) {
            relax(out + from, row(k + 1, last) + (from - shift), row(first, k) + from, cost, to - from);
        }
    }
}

SegmentChoice SegmentTable::choice(int first, int last, int free) const {
    const float best = extra(first, last, free);
    assert(best < no_fit);
    const Bytes saved = covering(chain_.saved[at(first)]);
    if (first == last || (free >= std::max(covering(chain_.need_saving(first, last)), saved) &&
                          extra(first + 1, last, free - static_cast<int>(saved)) == best)) {
        return {true, first};
    }
    for (int k = first; k < last; ++k) {
        const Bytes shift = checkpoint_[at(k)];
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
            append(first + 1, last, free - static_cast<int>(covering(chain_.saved[at(first)])), sequence);
        }
        sequence.push_back({first, false, true});
        return;
    }
    append_forwards(first, begin.last, false, sequence);
    const auto shift = static_cast<int>(checkpoint_[at(begin.last)]);
    append(begin.last + 1, last, free - shift, sequence);
    append(first, begin.last, free, sequence);
}

std::optional<RematSolution> rotor(const SegmentTable& table, Bytes capacity) {
    const RematChain& chain = table.chain();
    const int free = table.fitting(capacity - chain.activation[0]);
    if (free < table.least(1, chain.layers)) {
        return std::nullopt;
    }
    RematSolution plan;
    plan.time = chain.ideal(1, chain.layers) + static_cast<Seconds>(table.extra(1, chain.layers, free));
    table.append(1, chain.layers, free, plan.sequence);
    return plan;
}

} // namespace memsched
