#include "memsched/planners/offload/fluid_chain.h"

#include "memsched/bounds/bounds.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace memsched {
namespace {

void check_column(const char* field, const std::vector<double>& column, std::size_t length) {
    if (column.size() != length) {
        throw std::invalid_argument(std::string(field) + " has " + std::to_string(column.size()) +
                                    " entries, expected " + std::to_string(length));
    }
    for (const double value : column) {
        if (!std::isfinite(value) || value < 0) {
            throw std::invalid_argument(std::string(field) + " has the entry " + show(value) +
                                        "; entries must be finite and >= 0");
        }
    }
}

} // namespace

void check_fluid_chain(const FluidChain& chain) {
    const std::size_t n = chain.forward.size();
    if (n == 0) {
        throw std::invalid_argument("forward is empty; a chain has at least one stage");
    }
    check_column("forward", chain.forward, n);
    check_column("backward", chain.backward, n);
    check_column("activation", chain.activation, n + 1);
    check_column("gradient", chain.gradient, n + 1);
    check_column("forward_overhead", chain.forward_overhead, n);
    check_column("backward_overhead", chain.backward_overhead, n);
    if (!std::isfinite(chain.capacity)) {
        throw std::invalid_argument("capacity is " + show(chain.capacity) + "; it must be finite");
    }
}

double fluid_min_capacity(const FluidChain& chain) {
    double least = 0;
    for (std::size_t i = 0; i < chain.forward.size(); ++i) {
        const double inputs = chain.activation[i] + chain.activation[i + 1];
        const double gradients = chain.gradient[i] + chain.gradient[i + 1];
        least = std::max({least, inputs + chain.forward_overhead[i], inputs + gradients + chain.backward_overhead[i]});
    }
    return least;
}

double fluid_fractional_bound(const FluidChain& chain) {
    const std::size_t n = chain.forward.size(), ops = 2 * n; // F_0 .. F_L, B_L .. B_0; the loss is part of B_L
    Workload work(ops);
    double held = chain.activation[0];
    for (std::size_t i = 0; i < n; ++i) {
        const std::size_t f = i, b = ops - 1 - i;
        held += chain.activation[i + 1];
        work.away_most[f] = work.away_most[b] = held - chain.activation[i] - chain.activation[i + 1];
        work.time[f] = chain.forward[i];
        work.time[b] = chain.backward[i];
        work.excess[f] = held + chain.forward_overhead[i] - chain.capacity;
        work.excess[b] = held + chain.gradient[i] + chain.gradient[i + 1] + chain.backward_overhead[i] - chain.capacity;
        work.written[i] += chain.activation[i];
        work.wanted[b] += chain.activation[i]; // B_i is its first reader after it was away
    }
    return fractional_bound(work, 1, 1);
}

double FluidModel::Turn::within(double window) const {
    const auto end = std::lower_bound(away.begin(), away.end(), window); // away < window
    return end == away.begin() ? -infinity : worst[static_cast<std::size_t>(end - away.begin()) - 1];
}

FluidModel::FluidModel(const FluidChain& chain) : chain_(chain) {
    const std::size_t n = chain.forward.size();
    stages_.resize(n);
    bounds_.resize(n);
    for (std::size_t i = 0; i < n; ++i) {
        stages_[i] = {chain.activation[i],        chain.activation[i + 1],   chain.forward[i],
                      chain.backward[i],          chain.forward_overhead[i], chain.gradient[i],
                      chain.backward_overhead[i], chain.gradient[i + 1],     chain.capacity};
        bounds_[i] = {chain.activation[i], chain.capacity, 0, compute_, 0, 0};
        compute_ = compute_ + chain.forward[i] + chain.backward[i];
    }
    double away_b = 0, away_f = 0, later = 0, worst_b = -infinity, worst_f = -infinity;
    double need = -infinity, solo = -infinity;
    for (std::size_t i = n; i-- > 0;) {
        const double demand_b = chain.backward_overhead[i] + chain.gradient[i] + chain.gradient[i + 1];
        const double beyond_x = chain.activation[i + 1] + std::max(chain.forward_overhead[i], demand_b);
        bounds_[i].compute = compute_;
        bounds_[i].need = need = std::max(beyond_x, chain.activation[i + 1] + need);
        bounds_[i].solo = solo = std::max(chain.activation[i] + beyond_x, solo);
        worst_b = std::max(worst_b, demand_b - later - away_b);                                      // (9)
        worst_f = std::max(worst_f, chain.forward_overhead[i] - chain.gradient[n] - later - away_f); // (10)
        backward_turn_.away.push_back(away_b);
        backward_turn_.worst.push_back(worst_b);
        forward_turn_.away.push_back(away_f);
        forward_turn_.worst.push_back(worst_f);
        away_b += chain.backward[i];
        away_f += chain.forward[i];
        later += chain.activation[i + 1]; // x_{i+1} counts for the ops below i
    }
}

double FluidModel::turn_idle(const FluidState& s) const {
    const double out = s.out_queue, in = s.in_queue;
    if (out <= 0 && in <= 0) {
        return 0;
    }
    if (out > 0 && in > 0) {
        return out + in;
    }
    if (out > 0) {
        return std::max({0.0, out + in, backward_turn_.within(-in) + s.held + out - chain_.capacity});
    }
    const double gradient = chain_.gradient.back();
    return std::max({0.0, in + out, forward_turn_.within(-out) + s.held + gradient + in - chain_.capacity});
}

double fluid_makespan(const FluidChain& chain, const std::vector<std::uint8_t>& offloaded) {
    if (offloaded.size() != chain.forward.size()) {
        throw std::invalid_argument("offloaded has " + std::to_string(offloaded.size()) +
                                    " flags, expected one per stage");
    }
    const FluidModel model(chain);
    FluidState state = model.initial();
    for (int i = 0; i < model.stages(); ++i) {
        FluidState kept{}, gone{};
        if (!model.stage(i).advance(state, kept, gone)) {
            return infinity;
        }
        state = offloaded[at(i)] ? gone : kept;
    }
    return model.makespan(state);
}

} // namespace memsched
