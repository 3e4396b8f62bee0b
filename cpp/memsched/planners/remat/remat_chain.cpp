#include "memsched/planners/remat/remat_chain.h"

#include <cmath>
#include <numeric>

namespace memsched {
namespace {

// Entries 1 .. n from a chain's column, 0 before and behind.
template <class T> std::vector<T> framed(const std::vector<T>& column) {
    std::vector<T> out(column.size() + 2, T{0});
    std::copy(column.begin(), column.end(), out.begin() + 1);
    return out;
}

// Entries 0 .. n from a chain's column, 0 behind.
std::vector<Bytes> followed(std::vector<Bytes> column) {
    column.push_back(0);
    return column;
}

std::vector<Seconds> in_units(std::vector<Seconds> times, int unit) {
    std::transform(times.begin(), times.end(), times.begin(), [unit](Seconds t) { return std::ldexp(t, -unit); });
    return times;
}

} // namespace

int unit_of(const Chain& chain) {
    const ChainColumns& c = chain.columns();
    const Seconds forward = std::accumulate(c.forward_time.begin(), c.forward_time.end(), 0.0);
    const Seconds all = std::accumulate(c.backward_time.begin(), c.backward_time.end(), forward);
    return all > 0 && std::isfinite(all) ? std::ilogb(all) : 0;
}

RematChain::RematChain(const Chain& chain, int unit) : layers(chain.n() + 1) {
    const ChainColumns& c = chain.columns();
    forward = framed(in_units(c.forward_time, unit));
    backward = framed(in_units(c.backward_time, unit));
    activation = followed(c.activation);
    saved = framed(c.saved);
    gradient = followed(c.gradient);
    saving_scratch = framed(c.forward_overhead);
    transient_scratch = framed(c.transient_overhead);
    backward_scratch = framed(c.backward_overhead);
    for (int k = 1; k < layers; ++k) {
        if (saved[at(k)] == activation[at(k)]) { // nothing to skip: the graph has one kind of forward
            transient_scratch[at(k)] = saving_scratch[at(k)];
        }
    }
    forward_until = step_until = {0};
    for (int k = 1; k <= layers; ++k) {
        forward_until.push_back(forward_until.back() + forward[at(k)]);
        step_until.push_back(step_until.back() + forward[at(k)] + backward[at(k)]);
    }
}

void append_forwards(int first, int last, bool saves, std::vector<RematOp>& sequence) {
    for (int k = first; k <= last; ++k) {
        sequence.push_back({k, true, saves});
    }
}

std::vector<Run> graph_runs(const RematChain& chain, const std::vector<RematOp>& sequence) {
    const int n = chain.layers - 1;
    std::vector<Run> runs;
    for (const RematOp& op : sequence) {
        if (!op.forward) {
            runs.push_back({2 * n + 1 - op.layer, false}); // the loss is op n, B_k is op n + 1 + n - k
        } else if (op.layer <= n) {
            const auto k = at(op.layer);
            runs.push_back({op.layer - 1, !op.saves && chain.saved[k] > chain.activation[k]});
        }
    }
    return runs;
}

} // namespace memsched
