#include "memsched/planners/remat/pofo_bound.h"

#include "memsched/support/simd.h"

#include <algorithm>

namespace memsched {
namespace {

constexpr int weight_steps = 4; // weights of each phase: 0, 1/3, 2/3, 1

double forward_weight(int pair) { return static_cast<double>(pair / weight_steps) / (weight_steps - 1); }
double backward_weight(int pair) { return static_cast<double>(pair % weight_steps) / (weight_steps - 1); }

// out[m] = min(out[m], fixed + weight * extra[m] + next[m])
MEMSCHED_CLONES void relax(float* __restrict out, const float* __restrict extra, const float* __restrict next,
                           float weight, float fixed, int count) {
    for (int m = 0; m < count; ++m) {
        const float value = fixed + weight * extra[m] + next[m];
        out[m] = value < out[m] ? value : out[m];
    }
}

} // namespace

PofoBound::PofoBound(const SegmentTable& table, const PofoOptions& options, Workers& workers, const Progress& progress)
    : table_(table), chain_(table.chain()), options_(options), stride_(at(table.slots()) + 1) {
    values_.assign(at(pairs) * 2 * at(chain_.layers + 2) * stride_, no_fit);
    for (int pair = 0; pair < pairs; ++pair) {
        const double out = forward_weight(pair), in = backward_weight(pair);
        weights_[at(pair)] = {1 - out, options.linked() ? out / options.d2h : 0,
                              options.linked() ? in / options.h2d : 0};
    }
    const int round = std::min(pairs, workers.threads()); // between rounds others are heard
    for (int from = 0; from < pairs; from += round) {
        if (progress.tick(0)) {
            throw Stopped{};
        }
        workers.each(std::min(round, pairs - from), [&](int pair, int) { fill(from + pair); });
    }
}

// Backward from the loss. Sizes are rounded down, so that states of real sizes are bounded too.
void PofoBound::fill(int pair) {
    const int slots = table_.slots();
    const double compute = 1 - backward_weight(pair);
    const auto rounded = [&](Bytes bytes) { return options_.exact ? table_.covering(bytes) : bytes / table_.width(); };
    // How many fewer slots are free once so many bytes are taken, also if the capacity is no whole number of slots.
    const auto taken = [&](Bytes bytes) -> Bytes {
        if (!options_.exact) {
            return bytes / table_.width();
        }
        return bytes > options_.capacity
                   ? slots + 1
                   : table_.fitting(options_.capacity) - table_.fitting(options_.capacity - bytes);
    };
    const Weights& w = weights_[at(pair)];
    std::vector<float> zero(stride_, 0.0F);
    for (int i = chain_.layers; i >= 1; --i) {
        for (const bool all : {false, true}) {
            if (all && i == 1) {
                continue;
            }
            float* out = values_.data() + index(pair, i, all);
            const Bytes bytes = chain_.input(i, all);
            if (bytes > options_.capacity) {
                continue;
            }
            const auto kept = static_cast<int>(rounded(bytes)), lost = static_cast<int>(taken(bytes));
            if (i == chain_.layers) {
                for (Bytes m = taken(bytes + std::max(chain_.need_all(i), chain_.need_backward(i))); m <= slots; ++m) {
                    out[m] = 0;
                }
                continue;
            }
            const auto block = [&](const float* extra, double fixed, bool next_all, int next) {
                const float* then = values_.data() + index(pair, next, next_all);
                if (kept <= slots) {
                    relax(out + kept, extra + (kept - lost), then, static_cast<float>(compute),
                          static_cast<float>(fixed), slots + 1 - kept);
                }
                if (options_.linked() && bytes > 0) {
                    relax(out + lost, extra, then + lost, static_cast<float>(compute),
                          static_cast<float>(fixed + (w.leaving + w.arriving) * static_cast<double>(bytes)),
                          slots + 1 - lost);
                }
            };
            block(zero.data(), compute * chain_.backward[at(i)], true, i + 1);
            for (int j = i; j < chain_.layers; ++j) {
                block(table_.row(i, j), compute * chain_.ideal(i, j), false, j + 1);
            }
        }
    }
}

int PofoBound::best_pair(int layer, bool all, const PofoState& state) const {
    const int at = slot(state.held);
    int best = 0;
    Seconds most = -1;
    for (int pair = 0; pair < pairs; ++pair) {
        const Seconds time = by_pair(pair, layer, all, at, state);
        if (time > most) {
            most = time;
            best = pair;
        }
    }
    return best;
}

} // namespace memsched
