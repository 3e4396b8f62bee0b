#include "memsched/planners/least_memory.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace memsched {

LeastMemory::LeastMemory(const RematChain& chain)
    : chain_(chain), segments_(static_cast<std::size_t>(chain.layers) + 1),
      blocks_(static_cast<std::size_t>(chain.layers) + 2) {
    const int n = chain.layers;
    for (int i = n; i >= 1; --i) {
        auto& row = segments_[RematChain::at(i)];
        for (int j = i; j <= n; ++j) {
            Bytes best = saving(i, j);
            Bytes forwards = chain.need_first(i);
            for (int k = i; k < j && chain.gradient[RematChain::at(j)] + forwards < best; ++k) {
                forwards = k == i ? forwards : std::max(forwards, chain.need_next(k));
                best =
                    std::min(best, std::max({chain.gradient[RematChain::at(j)] + forwards,
                                             chain.activation[RematChain::at(k)] + segment(k + 1, j), segment(i, k)}));
            }
            row.push_back(best);
        }
    }
    for (int i = n; i >= 1; --i) {
        for (const bool all : {false, true}) {
            const Bytes input = all && i == 1 ? 0 : chain.input(i, all);
            Bytes best = input + std::max(chain.need_all(i), chain.need_backward(i));
            if (i < n) {
                best = std::max(best, blocks_[RematChain::at(i + 1)][1]);
            }
            Bytes forwards = input + chain.need_first(i);
            for (int j = i; j < n; ++j) {
                forwards = j == i ? forwards : std::max(forwards, chain.need_next(j)); // the input has left
                best = std::min(best, std::max({forwards, input + segment(i, j), blocks_[RematChain::at(j + 1)][0]}));
            }
            blocks_[RematChain::at(i)][all ? 1 : 0] = best;
        }
    }
}

Bytes LeastMemory::saving(int first, int last) const {
    const Bytes need =
        std::max(chain_.gradient[RematChain::at(last)] + chain_.need_all(first), chain_.need_backward(first));
    return first == last ? need : std::max(need, chain_.saved[RematChain::at(first)] + segment(first + 1, last));
}

void LeastMemory::append(int first, int last, Bytes free, std::vector<RematOp>& sequence) const {
    if (saving(first, last) <= free) {
        sequence.push_back({first, true, true});
        if (first < last) {
            append(first + 1, last, free - chain_.saved[RematChain::at(first)], sequence);
        }
        sequence.push_back({first, false, true});
        return;
    }
    const Seconds half = chain_.forward_sum(first, last) / 2;
    int split = -1;
    Bytes forwards = chain_.gradient[RematChain::at(last)] + chain_.need_first(first);
    for (int k = first; k < last; ++k) {
        forwards =
            k == first ? forwards : std::max(forwards, chain_.gradient[RematChain::at(last)] + chain_.need_next(k));
        const bool fits = forwards <= free && segment(first, k) <= free &&
                          chain_.activation[RematChain::at(k)] + segment(k + 1, last) <= free;
        const auto off_half = [&](int at) { return std::abs(chain_.forward_sum(first, at) - half); };
        if (fits && (split < 0 || off_half(k) < off_half(split))) {
            split = k;
        }
    }
    assert(split >= 0);
    for (int k = first; k <= split; ++k) {
        sequence.push_back({k, true, false});
    }
    append(split + 1, last, free - chain_.activation[RematChain::at(split)], sequence);
    append(first, split, free, sequence);
}

std::vector<RematOp> LeastMemory::rotor_sequence(Bytes capacity) const {
    std::vector<RematOp> sequence;
    append(1, chain_.layers, capacity - chain_.activation[0], sequence);
    return sequence;
}

PofoPlan LeastMemory::pofo_plan(Bytes capacity) const {
    PofoPlan plan;
    const int n = chain_.layers;
    bool all = false;
    for (int i = 1; i <= n;) {
        const Bytes input = chain_.input(i, all);
        PofoBlock block{i, i, true, all, input > 0 && i < n};
        const bool saves = input + std::max(chain_.need_all(i), chain_.need_backward(i)) <= capacity &&
                           (i == n || blocks_[RematChain::at(i + 1)][1] <= capacity);
        if (!saves) { // the shortest block that fits
            block.all = false;
            Bytes forwards = input + chain_.need_first(i);
            for (int j = i; j < n; ++j) {
                forwards = j == i ? forwards : std::max(forwards, chain_.need_next(j));
                block.last = j;
                if (std::max({forwards, input + segment(i, j), blocks_[RematChain::at(j + 1)][0]}) <= capacity) {
                    break;
                }
            }
        }
        plan.blocks.push_back(block);
        all = block.all;
        i = block.last + 1;
    }
    for (const PofoBlock& block : plan.blocks) {
        for (int k = block.first; k <= block.last; ++k) {
            plan.sequence.push_back({k, true, block.all});
        }
    }
    for (auto block = plan.blocks.rbegin(); block != plan.blocks.rend(); ++block) {
        if (block->all) {
            plan.sequence.push_back({block->first, false, true});
        } else {
            append(block->first, block->last, capacity - chain_.input(block->first, block->input_saved), plan.sequence);
        }
    }
    return plan;
}

} // namespace memsched
