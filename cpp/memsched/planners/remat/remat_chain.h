// A chain in the form of rotor and POFO: layers 1 .. n and the loss as layer n + 1, and the memory needs of each
// operation.
#pragma once

#include "memsched/model/chain.h"
#include "memsched/simulate/unroll.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace memsched {

// Columns by layer, 1 .. layers (entry 0 is of the input, or unused). The loss takes no time and saves nothing.
//
// A layer runs forward in three ways: F_all saves all that its backward needs, F_ck keeps only its input, F_none drops
// its input too. The needs below never include the stored input of the current part of the chain (NeurIPS 2021, Table 1
// and section 3).
struct RematChain {
    // Times are in units of 2^unit seconds.
    explicit RematChain(const Chain& chain, int unit = 0);

    int layers = 0; // n + 1
    std::vector<Seconds> forward, backward;
    std::vector<Bytes> activation; // a^0 .. a^{n+1}
    std::vector<Bytes> saved;      // what F_all leaves, a^k included
    std::vector<Bytes> gradient;   // d^0 .. d^{n+1}
    std::vector<Bytes> saving_scratch, transient_scratch, backward_scratch;
    std::vector<Seconds> forward_until, step_until; // sums of forward, and of forward and backward, of layers <= k

    Seconds forward_sum(int first, int last) const { return forward_until[at(last)] - forward_until[at(first - 1)]; }
    Seconds ideal(int first, int last) const { return step_until[at(last)] - step_until[at(first - 1)]; }

    // The stored input of layer k: a^{k-1}, or with `all` everything that F_all of layer k - 1 left.
    Bytes input(int k, bool all) const { return all ? saved[at(k - 1)] : activation[at(k - 1)]; }

    // Bytes that the operation needs in addition to the stored input and, for forwards, the gradient held meanwhile.
    Bytes need_all(int k) const { return saved[at(k)] + saving_scratch[at(k)]; }
    Bytes need_first(int k) const { return activation[at(k)] + transient_scratch[at(k)]; }
    Bytes need_next(int k) const { return activation[at(k - 1)] + need_first(k); }
    Bytes need_backward(int k) const {
        return saved[at(k)] + gradient[at(k)] + gradient[at(k - 1)] + backward_scratch[at(k)];
    }
    // Both of F_all and of the backward that uses what it saves, while the gradient of layer `end` is held.
    Bytes need_saving(int k, int end) const { return std::max(need_all(k) + gradient[at(end)], need_backward(k)); }
};

// A unit in which the sum of all times is about one, so that they fit into tables of floats.
int unit_of(const Chain& chain);

// One operation of a sequence: a layer forward, with or without saving, or backward. The loss runs backward only.
struct RematOp {
    int layer = 0;
    bool forward = true;
    bool saves = true; // forward only
    bool operator==(const RematOp&) const = default;
};

// Appends layers first .. last forward.
void append_forwards(int first, int last, bool saves, std::vector<RematOp>& sequence);

// The run steps of a sequence on the chain's graph, to_graph(chain).
std::vector<Run> graph_runs(const RematChain& chain, const std::vector<RematOp>& sequence);

// One block of POFO's forward phase: the layers first .. last, saved (`all`, one layer) or run from a checkpoint.
struct PofoBlock {
    int first = 0, last = 0;
    bool all = true;
    bool input_saved = false; // its input is all that layer first - 1 saves, not only its output
    bool offloaded = false;   // its input is offloaded
};

struct RematSolution {
    std::vector<RematOp> sequence; // forward phase, loss, backward phase
    std::vector<PofoBlock> blocks; // the loss last; none in rotor's plans
    Seconds time = 0;              // in the fluid link model
    std::uint64_t states = 0;      // expanded

    // Fills the sequence; backward(k) appends that of block k, which is run from a checkpoint.
    template <class Backward> void run_blocks(const Backward& backward) {
        for (const PofoBlock& block : blocks) {
            append_forwards(block.first, block.last, block.all, sequence);
        }
        for (std::size_t k = blocks.size(); k-- > 0;) {
            if (blocks[k].all) {
                sequence.push_back({blocks[k].first, false, true});
            } else {
                backward(k);
            }
        }
    }
};

} // namespace memsched
