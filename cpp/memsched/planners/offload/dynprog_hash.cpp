// Algorithm 1 of Euro-Par 2020 with the corrections of docs/errata.md, kept as plain as the paper prints it.
#include "memsched/planners/offload/dynprog.h"

#include <bit>
#include <stdexcept>

namespace memsched {
namespace {

// The table IDLE_i: (held, out_queue, in_queue) -> least idle. Insertion order is kept, so that ties are deterministic.
class IdleTable {
  public:
    void insert(const FluidState& state, std::uint32_t origin) {
        if (2 * states.size() >= slots_.size()) {
            grow();
        }
        std::uint32_t& slot = find(state);
        if (slot == empty) {
            slot = static_cast<std::uint32_t>(states.size());
            states.push_back(state);
            origins.push_back(origin);
        } else if (state.idle < states[slot].idle) {
            states[slot] = state;
            origins[slot] = origin;
        }
    }

    std::vector<FluidState> states;
    std::vector<std::uint32_t> origins; // parent << 1 | offloaded

  private:
    static constexpr std::uint32_t empty = ~0U;

    static std::size_t hash(const FluidState& s) {
        std::uint64_t h = 0;
        for (const double part : {s.held, s.out_queue, s.in_queue}) {
            h = (h ^ std::bit_cast<std::uint64_t>(part + 0.0)) * 0x9E3779B97F4A7C15ULL;
            h ^= h >> 29U;
        }
        return static_cast<std::size_t>(h);
    }

    std::uint32_t& find(const FluidState& s) {
        const std::size_t mask = slots_.size() - 1;
        for (std::size_t at = hash(s) & mask;; at = (at + 1) & mask) {
            if (slots_[at] == empty) {
                return slots_[at];
            }
            const FluidState& other = states[slots_[at]];
            if (other.held == s.held && other.out_queue == s.out_queue && other.in_queue == s.in_queue) {
                return slots_[at];
            }
        }
    }

    void grow() {
        slots_.assign(std::max<std::size_t>(64, 2 * slots_.size()), empty);
        for (std::size_t i = 0; i < states.size(); ++i) {
            find(states[i]) = static_cast<std::uint32_t>(i);
        }
    }

    std::vector<std::uint32_t> slots_;
};

} // namespace

DynprogSolution dynprog_hash(const FluidChain& chain, const DynprogOptions& options, const Progress& progress) {
    check_fluid_chain(chain);
    const FluidModel model(chain);
    StateOrigins origins;
    std::vector<FluidState> current{model.initial()};
    DynprogSolution best;
    for (int i = 0; i < model.stages(); ++i) {
        IdleTable table;
        for (std::size_t p = 0; p < current.size(); ++p) {
            if ((p & 1023U) == 0) {
                progress.tick(static_cast<double>(i) / model.stages());
            }
            FluidState kept{}, offloaded{};
            if (!model.stage(i).advance(current[p], kept, offloaded)) {
                continue;
            }
            table.insert(offloaded, static_cast<std::uint32_t>(p << 1U | 1U));
            table.insert(kept, static_cast<std::uint32_t>(p << 1U));
        }
        best.states += table.states.size();
        if (best.states > options.max_states) {
            throw std::length_error("the hash tables hold more than " + std::to_string(options.max_states) +
                                    " states; use fewer slots or the default method");
        }
        current = std::move(table.states);
        origins.push_back(std::move(table.origins));
    }
    best.makespan = infinity;
    std::size_t winner = 0;
    for (std::size_t s = 0; s < current.size(); ++s) {
        const double makespan = model.makespan(current[s]);
        if (makespan < best.makespan) {
            best.makespan = makespan;
            winner = s;
        }
    }
    if (best.makespan == infinity) {
        refuse_capacity(chain);
    }
    best.offloaded = offloaded_on_way(origins, winner);
    best.lower_bound = best.makespan;
    best.optimal = true;
    return best;
}

} // namespace memsched
