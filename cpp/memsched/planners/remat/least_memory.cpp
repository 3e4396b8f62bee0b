#include "memsched/planners/remat/least_memory.h"

#include "memsched/support/simd.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <stdexcept>
#include <string>

namespace memsched {
namespace {

MEMSCHED_CLONES Bytes least_of_checkpoints(std::ptrdiff_t count, Bytes best, Bytes gradient, const Bytes* forwards,
                                           const Bytes* before, const Bytes* checkpoint, const Bytes* after) {
    for (std::ptrdiff_t k = 0; k < count; ++k) {
        const Bytes held = checkpoint[k] + after[k], forward = gradient + forwards[k];
        const Bytes larger = held > forward ? held : forward;
        const Bytes need = larger > before[k] ? larger : before[k];
        best = need < best ? need : best;
    }
    return best;
}

} // namespace

LeastMemory::LeastMemory(const RematChain& chain, const Progress& progress, int exact)
    : chain_(chain), progress_(progress), blocks_(at(chain.layers) + 2) {
    const int n = chain.layers;
    if (n <= exact) {
        segments_.resize(at(n) + 1);
        for (int j = 1; j <= n; ++j) {
            segments_[at(j)].resize(at(j) + 1);
        }
        for (int i = n; i >= 1; --i) {
            find_segments(i);
            progress.tick(0.9 * (n - i) / n);
        }
    }
    Needs whole(*this, 1);
    for (int j = 1; j <= n; ++j) {
        rotor_ = chain_.activation[0] + whole.next();
    }
    Bytes floor = 0; // what a backward from layer i on needs beside its layer's input, however the blocks are cut
    for (int i = n; i >= 1; --i) {
        floor = std::max(floor, (i > 1 ? chain.activation[at(i - 1)] : 0) + chain.need_backward(i));
        for (const bool all : {false, true}) {
            const Bytes input = all && i == 1 ? 0 : chain.input(i, all);
            Bytes best = input + std::max(chain.need_all(i), chain.need_backward(i));
            if (i < n) {
                best = std::max(best, blocks_[at(i + 1)][1]);
            }
            Bytes forwards = input + chain.need_first(i);
            Needs needs(*this, i);
            for (int j = i; j < n && forwards < best && best > floor; ++j) {
                forwards = j == i ? forwards : std::max(forwards, chain.need_next(j)); // the input has left
                const Bytes held = input + needs.next();
                if (segments_.empty() && held >= best) {
                    break; // without a table what is needed grows with j
                }
                best = std::min(best, std::max({forwards, held, blocks_[at(j + 1)][0]}));
            }
            blocks_[at(i)][all ? 1 : 0] = best;
        }
        progress.tick(0.9 + 0.1 * (n - i) / n);
    }
}

// Longer segments from the shorter ones that begin later.
void LeastMemory::find_segments(int first) {
    std::vector<Bytes> row{chain_.need_saving(first, first)}, forwards; // of first .. k
    segments_[at(first)][at(first)] = row[0];
    for (int j = first + 1; j <= chain_.layers; ++j) {
        const int k = j - 1;
        forwards.push_back(k == first ? chain_.need_first(first) : std::max(forwards.back(), chain_.need_next(k)));
        const Bytes gradient = chain_.gradient[at(j)];
        Bytes best = saving(first, j, segment(first + 1, j));
        // No checkpoint after a layer whose forwards alone need as much can be better.
        const auto count =
            std::partition_point(forwards.begin(), forwards.end(), [&](Bytes need) { return gradient + need < best; }) -
            forwards.begin();
        best = least_of_checkpoints(count, best, gradient, forwards.data(), row.data(),
                                    chain_.activation.data() + first, segments_[at(j)].data() + first + 1);
        row.push_back(best);
        segments_[at(j)][at(first)] = best;
    }
}

// Without a table: one forward to each layer t, whose input is held beside what its backward needs.
Bytes LeastMemory::Needs::next() {
    const RematChain& chain = least_.chain_;
    const int t = next_++;
    if (!least_.segments_.empty()) {
        return least_.segment(first_, t);
    }
    if (t == first_) {
        forwards_ = chain.need_first(first_);
        return needed_ = chain.need_saving(first_, first_);
    }
    needed_ =
        std::max({needed_, chain.activation[at(t - 1)] + chain.need_saving(t, t), chain.gradient[at(t)] + forwards_});
    forwards_ = std::max(forwards_, chain.need_next(t));
    return needed_;
}

LeastMemory::Ends LeastMemory::until(int first, int last) const {
    Ends ends{first, {}};
    Bytes later = 0, gradient = 0; // of the layers after k: their own needs and forwards, and the largest gradient
    for (int k = last; k >= first; --k) {
        if (!segments_.empty()) {
            ends.needs.push_back(segment(k, last));
            continue;
        }
        const Bytes begin = k == last ? 0 : gradient + chain_.need_first(k);
        ends.needs.push_back(std::max({chain_.need_saving(k, k), later, begin}));
        if (k > 1) { // as a layer in the middle
            const Bytes next = k == last ? 0 : gradient + chain_.need_next(k);
            later = std::max({later, chain_.activation[at(k - 1)] + chain_.need_saving(k, k), next});
            gradient = std::max(gradient, chain_.gradient[at(k)]);
        }
    }
    std::reverse(ends.needs.begin(), ends.needs.end());
    return ends;
}

// Its first layer saved; `rest`: what the layers after it need.
Bytes LeastMemory::saving(int first, int last, Bytes rest) const {
    const Bytes need = chain_.need_saving(first, last);
    return first == last ? need : std::max(need, chain_.saved[at(first)] + rest);
}

int LeastMemory::split(int first, int last, Bytes free, const Ends& upper) const {
    const Seconds half = chain_.forward_sum(first, last) / 2;
    int best = 0;
    Bytes forwards = chain_.gradient[at(last)] + chain_.need_first(first);
    Needs lower(*this, first);
    for (int k = first; k < last; ++k) {
        forwards = k == first ? forwards : std::max(forwards, chain_.gradient[at(last)] + chain_.need_next(k));
        const bool fits =
            std::max(forwards, lower.next()) <= free && chain_.activation[at(k)] + upper.from(k + 1) <= free;
        const auto off_half = [&](int at) { return std::abs(chain_.forward_sum(first, at) - half); };
        if (fits && (best == 0 || off_half(k) < off_half(best))) {
            best = k;
        }
    }
    assert(best > 0);
    return best;
}

void LeastMemory::append(int first, int last, Bytes free, const Ends& upper, std::vector<RematOp>& sequence) const {
    const int begin = first;
    while (first <= last && saving(first, last, first == last ? 0 : upper.from(first + 1)) <= free) {
        sequence.push_back({first, true, true});
        free -= chain_.saved[at(first++)];
    }
    if (first <= last) {
        const int end = split(first, last, free, upper);
        append_forwards(first, end, false, sequence);
        progress_.tick(1);
        if (sequence.size() > most_runs) {
            throw std::length_error("so close to the least memory a plan runs its stages more than " +
                                    std::to_string(most_runs) + " times; give more memory");
        }
        append(end + 1, last, free - chain_.activation[at(end)], upper, sequence);
        append(first, end, free, until(first, end), sequence);
    }
    while (first > begin) {
        sequence.push_back({--first, false, true});
    }
}

std::vector<RematOp> LeastMemory::rotor_sequence(Bytes capacity) const {
    std::vector<RematOp> sequence;
    append(1, chain_.layers, capacity - chain_.activation[0], until(1, chain_.layers), sequence);
    return sequence;
}

RematSolution LeastMemory::pofo_plan(Bytes capacity) const {
    RematSolution plan;
    const int n = chain_.layers;
    bool all = false;
    for (int i = 1; i <= n;) {
        const Bytes input = chain_.input(i, all);
        PofoBlock block{i, i, true, all, input > 0 && i < n};
        const bool saves = input + std::max(chain_.need_all(i), chain_.need_backward(i)) <= capacity &&
                           (i == n || blocks_[at(i + 1)][1] <= capacity);
        if (!saves) { // the shortest block that fits
            block.all = false;
            Bytes forwards = input + chain_.need_first(i);
            Needs needs(*this, i);
            for (int j = i; j < n; ++j) {
                forwards = j == i ? forwards : std::max(forwards, chain_.need_next(j));
                block.last = j;
                if (std::max({forwards, input + needs.next(), blocks_[at(j + 1)][0]}) <= capacity) {
                    break;
                }
            }
        }
        plan.blocks.push_back(block);
        all = block.all;
        i = block.last + 1;
    }
    plan.run_blocks([&](std::size_t k) {
        const PofoBlock& block = plan.blocks[k];
        append(block.first, block.last, capacity - chain_.input(block.first, block.input_saved),
               until(block.first, block.last), plan.sequence);
    });
    return plan;
}

} // namespace memsched
