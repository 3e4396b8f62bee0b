#include "memsched/planners/offload/dynprog_stage.h"

#include "memsched/support/simd.h"

namespace memsched {
namespace {

constexpr std::size_t rows_at_once = 16;       // rows that are compared before it is asked whether one dominates
constexpr std::size_t dominance_window = 2048; // how many kept states a new one is compared with

struct Columns {
    double *held, *out_queue, *in_queue, *idle, *moved;

    explicit Columns(FluidStates& s)
        : held(s.held.data()), out_queue(s.out_queue.data()), in_queue(s.in_queue.data()), idle(s.idle.data()),
          moved(s.moved.data()) {}

    void put(std::size_t row, const FluidState& s) const {
        held[row] = s.held;
        out_queue[row] = s.out_queue;
        in_queue[row] = s.in_queue;
        idle[row] = s.idle;
        moved[row] = s.moved;
    }
};

MEMSCHED_CLONES std::size_t advance_columns(const FluidStage stage, const FluidBound next, bool last, std::size_t count,
                                            const FluidStates& states, const Columns kept, double* kept_bound,
                                            const Columns gone, double* gone_bound) {
    const double *held = states.held.data(), *out = states.out_queue.data(), *in = states.in_queue.data(),
                 *idle = states.idle.data(), *moved = states.moved.data();
    double fits = 0;
#pragma GCC ivdep
    for (std::size_t p = 0; p < count; ++p) {
        FluidState a{}, b{};
        const bool room = stage.advance({held[p], out[p], in[p], idle[p], moved[p]}, a, b);
        kept.put(p, a);
        gone.put(p, b);
        const double first = next.of(a), second = next.of(b);
        kept_bound[p] = room ? (last ? 0 : first) : infinity;
        gone_bound[p] = room ? (last ? 0 : second) : infinity;
        fits += room ? 2 : 0;
    }
    return static_cast<std::size_t>(fits);
}

MEMSCHED_CLONES bool any_dominates(const double* out, const double* in, const double* idle, std::size_t count,
                                   double out_queue, double in_queue, double most_idle) {
    for (std::size_t first = 0; first < count; first += rows_at_once) {
        std::uint64_t found = 0;
        for (std::size_t j = first; j < first + rows_at_once; ++j) {
            const double wait_out = out[j] - out_queue, wait_in = in[j] - in_queue;
            const double wait = (wait_out > 0 ? wait_out : 0) + (wait_in > 0 ? wait_in : 0);
            found |= idle[j] + wait <= most_idle ? 1U : 0U;
        }
        if (found != 0) {
            return true;
        }
    }
    return false;
}

} // namespace

void FluidStates::resize(std::size_t count) {
    for (std::vector<double>* column : {&held, &out_queue, &in_queue, &idle, &moved}) {
        column->resize(count);
    }
}

void FluidStates::assign(const FluidState& s) {
    resize(1);
    Columns(*this).put(0, s);
}

void FluidChildren::gather(const std::vector<std::uint32_t>& chosen, FluidStates& states) const {
    states.resize(chosen.size());
    for (const auto column : {&FluidStates::held, &FluidStates::out_queue, &FluidStates::in_queue, &FluidStates::idle,
                              &FluidStates::moved}) {
        const double* const from[2] = {(of[0].*column).data(), (of[1].*column).data()};
        double* const to = (states.*column).data();
        for (std::size_t k = 0; k < chosen.size(); ++k) {
            to[k] = from[chosen[k] & 1U][chosen[k] >> 1U];
        }
    }
}

std::size_t advance_all(const FluidStage& stage, const FluidBound* next, const FluidStates& states,
                        FluidChildren& children) {
    for (const int side : {0, 1}) {
        children.of[side].resize(states.size());
        children.bound[side].resize(states.size());
    }
    return advance_columns(stage, next == nullptr ? FluidBound{} : *next, next == nullptr, states.size(), states,
                           Columns(children.of[0]), children.bound[0].data(), Columns(children.of[1]),
                           children.bound[1].data());
}

void DominanceFilter::restart(std::size_t most) {
    size_ = 0;
    out_.assign(most + rows_at_once, 0);
    in_.assign(most + rows_at_once, 0);
    idle_.assign(most + rows_at_once, infinity);
}

void DominanceFilter::run(const std::uint32_t* first, std::size_t count, const FluidChildren& children,
                          std::vector<std::uint32_t>& kept) {
    for (std::size_t k = 0; k < count; ++k) {
        const FluidState s = children[first[k]];
        const std::size_t from = size_ > dominance_window ? size_ - dominance_window : 0;
        if (!any_dominates(out_.data() + from, in_.data() + from, idle_.data() + from, size_ - from, s.out_queue,
                           s.in_queue, s.idle)) {
            out_[size_] = s.out_queue;
            in_[size_] = s.in_queue;
            idle_[size_] = s.idle;
            ++size_;
            kept.push_back(first[k]);
        }
    }
}

} // namespace memsched
