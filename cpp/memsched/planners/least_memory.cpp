#include "memsched/planners/least_memory.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace memsched {

LeastMemory::LeastMemory(const RematChain& chain, const Progress& progress, int exact)
    : chain_(chain), blocks_(static_cast<std::size_t>(chain.layers) + 2) {
    const int n = chain.layers;
    if (n <= exact) {
        segments_.resize(static_cast<std::size_t>(n) + 1);
        for (int i = n; i >= 1; --i) {
            segments_[RematChain::at(i)] = exactly(i);
            progress.tick(0.9 * (n - i) / n);
        }
    }
    rotor_ = chain_.activation[0] + from(1, n).back();
    for (int i = n; i >= 1; --i) {
        const std::vector<Bytes> needs = from(i, n);
        for (const bool all : {false, true}) {
            const Bytes input = all && i == 1 ? 0 : chain.input(i, all);
            Bytes best = input + std::max(chain.need_all(i), chain.need_backward(i));
            if (i < n) {
                best = std::max(best, blocks_[RematChain::at(i + 1)][1]);
            }
            Bytes forwards = input + chain.need_first(i);
            for (int j = i; j < n && forwards < best; ++j) {
                forwards = j == i ? forwards : std::max(forwards, chain.need_next(j)); // the input has left
                best = std::min(best, std::max({forwards, input + needs[RematChain::at(j - i)],
                                                blocks_[RematChain::at(j + 1)][0]}));
            }
            blocks_[RematChain::at(i)][all ? 1 : 0] = best;
        }
        progress.tick(0.9 + 0.1 * (n - i) / n);
    }
}

Bytes LeastMemory::own(int layer) const {
    return std::max(chain_.gradient[RematChain::at(layer)] + chain_.need_all(layer), chain_.need_backward(layer));
}

// Longer segments from the shorter ones that begin later.
std::vector<Bytes> LeastMemory::exactly(int first) const {
    std::vector<Bytes> row;
    for (int j = first; j <= chain_.layers; ++j) {
        Bytes best = first == j ? own(first) : saving(first, j, segment(first + 1, j));
        Bytes forwards = chain_.need_first(first);
        for (int k = first; k < j && chain_.gradient[RematChain::at(j)] + forwards < best; ++k) {
            forwards = k == first ? forwards : std::max(forwards, chain_.need_next(k));
            best = std::min(best, std::max({chain_.gradient[RematChain::at(j)] + forwards,
                                            chain_.activation[RematChain::at(k)] + segment(k + 1, j),
                                            row[RematChain::at(k - first)]}));
        }
        row.push_back(best);
    }
    return row;
}

// Without a table: one forward to each layer t, whose input is held beside what its backward needs.
std::vector<Bytes> LeastMemory::from(int first, int last) const {
    if (!segments_.empty()) {
        const auto& row = segments_[RematChain::at(first)];
        return {row.begin(), row.begin() + (last - first + 1)};
    }
    std::vector<Bytes> needs{own(first)};
    Bytes forwards = chain_.need_first(first);
    for (int t = first + 1; t <= last; ++t) {
        needs.push_back(std::max({needs.back(), chain_.activation[RematChain::at(t - 1)] + own(t),
                                  chain_.gradient[RematChain::at(t)] + forwards}));
        forwards = std::max(forwards, chain_.need_next(t));
    }
    return needs;
}

std::vector<Bytes> LeastMemory::until(int first, int last) const {
    std::vector<Bytes> needs;
    Bytes later = 0, gradient = 0; // of the layers after k: their own needs and forwards, and the largest gradient
    for (int k = last; k >= first; --k) {
        if (!segments_.empty()) {
            needs.push_back(segment(k, last));
            continue;
        }
        const Bytes begin = k == last ? 0 : gradient + chain_.need_first(k);
        needs.push_back(std::max({own(k), later, begin}));
        if (k > 1) { // as a layer in the middle
            const Bytes next = k == last ? 0 : gradient + chain_.need_next(k);
            later = std::max({later, chain_.activation[RematChain::at(k - 1)] + own(k), next});
            gradient = std::max(gradient, chain_.gradient[RematChain::at(k)]);
        }
    }
    std::reverse(needs.begin(), needs.end());
    return needs;
}

// Its first layer saved; `rest`: what the layers after it need.
Bytes LeastMemory::saving(int first, int last, Bytes rest) const {
    const Bytes need =
        std::max(chain_.gradient[RematChain::at(last)] + chain_.need_all(first), chain_.need_backward(first));
    return first == last ? need : std::max(need, chain_.saved[RematChain::at(first)] + rest);
}

int LeastMemory::split(int first, int last, Bytes free) const {
    const std::vector<Bytes> upper = until(first, last), lower = from(first, last);
    if (saving(first, last, first == last ? 0 : upper[1]) <= free) {
        return 0;
    }
    const Seconds half = chain_.forward_sum(first, last) / 2;
    int best = 0;
    Bytes forwards = chain_.gradient[RematChain::at(last)] + chain_.need_first(first);
    for (int k = first; k < last; ++k) {
        forwards =
            k == first ? forwards : std::max(forwards, chain_.gradient[RematChain::at(last)] + chain_.need_next(k));
        const bool fits = forwards <= free && lower[RematChain::at(k - first)] <= free &&
                          chain_.activation[RematChain::at(k)] + upper[RematChain::at(k + 1 - first)] <= free;
        const auto off_half = [&](int at) { return std::abs(chain_.forward_sum(first, at) - half); };
        if (fits && (best == 0 || off_half(k) < off_half(best))) {
            best = k;
        }
    }
    assert(best > 0);
    return best;
}

void LeastMemory::append(int first, int last, Bytes free, std::vector<RematOp>& sequence) const {
    const int end = split(first, last, free);
    if (end == 0) {
        sequence.push_back({first, true, true});
        if (first < last) {
            append(first + 1, last, free - chain_.saved[RematChain::at(first)], sequence);
        }
        sequence.push_back({first, false, true});
        return;
    }
    for (int k = first; k <= end; ++k) {
        sequence.push_back({k, true, false});
    }
    append(end + 1, last, free - chain_.activation[RematChain::at(end)], sequence);
    append(first, end, free, sequence);
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
            const std::vector<Bytes> needs = from(i, n);
            for (int j = i; j < n; ++j) {
                forwards = j == i ? forwards : std::max(forwards, chain_.need_next(j));
                block.last = j;
                if (std::max({forwards, input + needs[RematChain::at(j - i)], blocks_[RematChain::at(j + 1)][0]}) <=
                    capacity) {
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
