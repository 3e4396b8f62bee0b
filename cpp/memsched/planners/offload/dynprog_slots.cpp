#include "memsched/planners/offload/dynprog_slots.h"

#include <algorithm>
#include <cmath>

namespace memsched {
namespace {

constexpr std::size_t fallback_states = 1'000'000; // of the search on real sizes that follows a failed discretisation

// value / width, where a quotient that is whole up to rounding errors is made whole.
double ratio(double value, double width) {
    const double quotient = value / width, nearest = std::floor(quotient + 0.5);
    return std::abs(quotient - nearest) <= 1e-9 * std::max(1.0, nearest) ? nearest : quotient;
}

std::vector<double> ceil_slots(const std::vector<double>& values, double width) {
    std::vector<double> slots;
    for (const double value : values) {
        slots.push_back(std::ceil(ratio(value, width)));
    }
    return slots;
}

// Slots whose every prefix sum is the rounded prefix sum of the values.
template <class Round> std::vector<double> partial_sums(const std::vector<double>& values, double width, Round round) {
    std::vector<double> slots;
    double total = 0, before = 0;
    for (const double value : values) {
        total += value;
        const double reached = round(ratio(total, width));
        slots.push_back(reached - before);
        before = reached;
    }
    return slots;
}

std::vector<double> scaled(std::vector<double> column, double factor) {
    for (double& value : column) {
        value *= factor;
    }
    return column;
}

std::vector<double> floor_times(const std::vector<double>& seconds, Bandwidth bandwidth, double width) {
    return partial_sums(scaled(seconds, bandwidth), width, [](double value) { return std::floor(value); });
}

std::vector<double> doubles(const std::vector<Bytes>& column) { return {column.begin(), column.end()}; }

bool is_link(Bandwidth bandwidth) { return bandwidth > 0 && std::isfinite(bandwidth); }

FluidSolution solve_exactly(const FluidSizes& sizes, Bytes capacity, Bandwidth bandwidth, const DynprogOptions& options,
                            const Progress& progress) {
    DynprogSolution found = dynprog(sizes.exact(capacity, bandwidth), options, progress);
    return {std::move(found.offloaded), found.makespan / bandwidth, found.lower_bound / bandwidth, found.optimal,
            found.states};
}

} // namespace

FluidSizes::FluidSizes(const Chain& chain, Seconds compute) : compute_(compute) {
    const ChainColumns& columns = chain.columns();
    chain_ = {columns.forward_time,
              columns.backward_time,
              {static_cast<double>(columns.activation[0])},
              doubles(columns.gradient),
              doubles(columns.forward_overhead),
              doubles(columns.backward_overhead),
              0};
    Bytes held = columns.activation[0], input = held;
    for (std::size_t i = 0; i < stages(); ++i) {
        const Bytes output = columns.saved[i];
        const Bytes scratch = std::max(columns.forward_overhead[i],
                                       columns.gradient[i] + columns.gradient[i + 1] + columns.backward_overhead[i]);
        chain_.activation.push_back(static_cast<double>(output));
        held += output;
        peak_ = std::max(peak_, held + scratch);
        least_ = std::max(least_, input + output + scratch);
        input = output;
    }
}

FluidChain FluidSizes::exact(Bytes capacity, Bandwidth bandwidth) const {
    FluidChain chain = chain_;
    const double speed = std::isfinite(bandwidth) ? bandwidth : 0;
    chain.forward = scaled(std::move(chain.forward), speed);
    chain.backward = scaled(std::move(chain.backward), speed);
    chain.capacity = static_cast<double>(capacity);
    return chain;
}

FluidChain FluidSizes::in_slots(double width, double slots, Bandwidth bandwidth,
                                const std::vector<double>& activation) const {
    return {floor_times(chain_.forward, bandwidth, width),
            floor_times(chain_.backward, bandwidth, width),
            activation,
            ceil_slots(chain_.gradient, width),
            ceil_slots(chain_.forward_overhead, width),
            ceil_slots(chain_.backward_overhead, width),
            slots};
}

std::vector<double> FluidSizes::activation_in_slots(double width) const {
    return partial_sums(chain_.activation, width, [](double value) { return std::ceil(value); });
}

bool FluidSizes::refine(std::vector<double>& activation, double width) const {
    double least = infinity;
    double* best = nullptr;
    for (std::size_t k = 0; k < activation.size(); ++k) {
        const double missing = ratio(chain_.activation[k], width) - activation[k];
        if (0 < missing && missing < least) {
            best = &activation[k];
            least = missing;
        }
    }
    if (best != nullptr) {
        *best += 1;
    }
    return best != nullptr;
}

std::vector<std::uint8_t> FluidSizes::prefix(Bytes excess) const {
    std::vector<std::uint8_t> offloaded(stages(), 0);
    double before = 0;
    for (std::size_t k = 0; k < stages() && before < static_cast<double>(excess); ++k) {
        offloaded[k] = 1;
        before += chain_.activation[k];
    }
    return offloaded;
}

Bandwidth fluid_bandwidth(Bandwidth d2h, Bandwidth h2d, Seconds compute) {
    const Bandwidth bandwidth = std::min(d2h, h2d) == 0 ? 0 : d2h == h2d ? d2h : 2.0 / (1.0 / d2h + 1.0 / h2d);
    return compute * bandwidth < 1e300 ? bandwidth : infinity;
}

FluidSolution fluid_solve(const FluidSizes& sizes, Bytes capacity, Bandwidth bandwidth, const FluidOptions& options,
                          const Progress& progress) {
    if (!is_link(bandwidth) || capacity >= sizes.peak()) {
        return {sizes.prefix(sizes.peak() - capacity), sizes.compute(), sizes.compute(), true};
    }
    if (!options.slots) {
        return solve_exactly(sizes, capacity, bandwidth, options.search, progress);
    }
    const auto slots = static_cast<double>(*options.slots);
    const double width = static_cast<double>(capacity) / slots;
    const FluidChain exact = sizes.exact(capacity, bandwidth);
    std::vector<double> activation = sizes.activation_in_slots(width);
    std::size_t states = 0;
    int rounds = 0;
    while (rounds < options.max_rounds && (rounds == 0 || !progress.tick(0))) {
        const FluidChain rounded = sizes.in_slots(width, slots, bandwidth, activation);
        if (fluid_min_capacity(rounded) > slots) {
            break;
        }
        ++rounds;
        DynprogSolution found = dynprog(rounded, options.search, progress);
        states += found.states;
        const double makespan = fluid_makespan(exact, found.offloaded);
        if (std::isfinite(makespan)) {
            return {std::move(found.offloaded), makespan / bandwidth, 0, found.optimal, states, rounds, *options.slots};
        }
        if (!sizes.refine(activation, width)) {
            break;
        }
    }
    DynprogOptions search = options.search;
    search.max_states = std::min(search.max_states, fallback_states);
    FluidSolution fallback = solve_exactly(sizes, capacity, bandwidth, search, progress);
    fallback.states += states;
    fallback.rounds = rounds;
    return fallback;
}

} // namespace memsched
