#include "memsched/planners/offload/dynprog.h"

#include "memsched/planners/offload/fluid_walk.h"
#include "memsched/support/errors.h"
#include "memsched/support/simd.h"

#include <algorithm>
#include <cmath>
#include <compare>
#include <optional>
#include <stdexcept>
#include <tuple>

namespace memsched {
namespace {

constexpr std::size_t first_width = 64;
constexpr std::size_t width_growth = 8;
constexpr std::size_t walk_per_width = 32;     // sets that the local search tries after a pass, per state of its width
constexpr std::size_t few_states = 56;         // not worth sorting for dominance
constexpr std::size_t dominance_window = 2048; // how many kept states a new one is compared with

// A state on its way through a stage, with the decision that made it.
struct Node {
    FluidState state;
    double bound;
    std::uint32_t origin; // parent << 1 | offloaded
};

// The order in which nodes are compared: what dominates comes first.
struct Rank {
    double held, idle;
    std::uint32_t node;

    auto operator<=>(const Rank&) const = default;
};

MEMSCHED_CLONES bool any_dominates(const double* out, const double* in, const double* idle, std::size_t count,
                                   const FluidState& s) {
    constexpr std::size_t block = 64;
    for (std::size_t first = 0; first < count; first += block) {
        const std::size_t end = std::min(first + block, count);
        unsigned found = 0;
        for (std::size_t j = first; j < end; ++j) {
            const double wait = std::max(out[j] - s.out_queue, 0.0) + std::max(in[j] - s.in_queue, 0.0);
            found += idle[j] + wait <= s.idle ? 1U : 0U;
        }
        if (found != 0) {
            return true;
        }
    }
    return false;
}

// Which of the kept states make a new one superfluous: it holds no less and is idle no less, even if the kept state
// first waits until its queues are as short. Columns, so that the comparison runs on vector units.
class DominanceFilter {
  public:
    void clear() {
        out_.clear();
        in_.clear();
        idle_.clear();
    }
    // States come in ascending order of held bytes.
    bool dominated(const FluidState& s) const {
        const std::size_t n = out_.size(), first = n > dominance_window ? n - dominance_window : 0;
        return any_dominates(out_.data() + first, in_.data() + first, idle_.data() + first, n - first, s);
    }
    void keep(const FluidState& s) {
        out_.push_back(s.out_queue);
        in_.push_back(s.in_queue);
        idle_.push_back(s.idle);
    }

  private:
    std::vector<double> out_, in_, idle_;
};

class Search {
  public:
    Search(const FluidChain& chain, const DynprogOptions& options, const Progress& progress)
        : chain_(chain), model_(chain), options_(options), progress_(progress) {
        best_.makespan = infinity;
    }

    DynprogSolution run() {
        for (std::size_t width = first_width;; width *= width_growth) {
            first_pass_ = width == first_width; // always runs to its end, so that there is a solution to return
            const double dropped = pass(width);
            proven_ = std::max(proven_, std::min(dropped, best_.makespan));
            if (dropped >= best_.makespan) {
                break; // exact
            }
            if (first_pass_) {
                root_bound_ = fluid_fractional_bound(chain_);
            }
            if (stopped_ || width > options_.max_states || close_enough()) {
                break;
            }
            if (best_.makespan == infinity) {
                break; // sizes beyond the precision of a double
            }
            walk(width);
            if (close_enough()) {
                break;
            }
        }
        if (best_.makespan == infinity) {
            throw std::invalid_argument("the chain's sizes are too large for the interruptible model, which counts in "
                                        "doubles; use a coarser unit");
        }
        best_.lower_bound = std::min(best_.makespan, std::max(proven_, root_bound_));
        best_.optimal = best_.makespan <= best_.lower_bound * (1 + 1e-12);
        return best_;
    }

  private:
    bool close_enough() const {
        const double bound = std::max(proven_, root_bound_);
        return best_.makespan < infinity && best_.makespan <= bound * (1 + options_.gap) * (1 + 1e-12);
    }

    double least_bound() const {
        double least = infinity;
        for (const Node& node : nodes_) {
            least = std::min(least, node.bound);
        }
        return least;
    }

    bool too_many(std::size_t kept) const {
        return kept + nodes_.size() > options_.max_states || nodes_.size() > options_.max_states / 32;
    }

    // The beam seldom finds the set whose size fits best; a walk from the incumbent does.
    void walk(std::size_t width) {
        if (!walk_) {
            walk_.emplace(model_);
        }
        const double target = std::max(proven_, root_bound_) * (1 + options_.gap);
        constexpr std::size_t slice = 4096;
        for (std::size_t left = walk_per_width * std::min(width, options_.max_states); left > 0;) {
            if (progress_.tick(0) || close_enough()) {
                return;
            }
            const std::size_t now = std::min(left, slice);
            const double found = walk_->run(best_.offloaded, best_.makespan, target, now);
            if (found < best_.makespan) {
                best_.makespan = found;
                best_.offloaded = walk_->offloaded();
            }
            left -= now;
        }
    }

    // Runs the dynamic program with at most `width` states a stage. Returns the least bound among the states dropped
    // for want of room, or infinity when there were none.
    double pass(std::size_t width) {
        const int stages = model_.stages();
        origins_.assign(static_cast<std::size_t>(stages), {});
        std::vector<FluidState> current{model_.initial()};
        std::size_t kept_states = 0;
        double dropped = infinity;
        for (int i = 0; i < stages; ++i) {
            expand(i, current);
            if (stopped_ || (!first_pass_ && too_many(kept_states))) {
                stopped_ = true;
                return std::min({dropped, least_bound(), best_.makespan});
            }
            dropped = std::min(dropped, narrow(width));
            dropped = std::min(dropped, filter(i, current, origins_[static_cast<std::size_t>(i)]));
            kept_states += current.size();
            if (stopped_) {
                return std::min(dropped, best_.makespan);
            }
        }
        finish(current);
        return dropped;
    }

    void expand(int i, const std::vector<FluidState>& current) {
        nodes_.clear();
        nodes_.reserve(2 * current.size());
        for (std::size_t p = 0; p < current.size(); ++p) {
            if ((p & 1023U) == 0 && progress_.tick(static_cast<double>(i) / model_.stages()) && !first_pass_) {
                stopped_ = true;
                for (; p < current.size(); ++p) { // their bounds still count
                    nodes_.push_back({current[p], model_.lower_bound(i, current[p]), 0});
                }
                return;
            }
            FluidState kept{}, offloaded{};
            if (!model_.advance(i, current[p], kept, offloaded)) {
                continue;
            }
            add(i + 1, kept, static_cast<std::uint32_t>(p << 1U));
            add(i + 1, offloaded, static_cast<std::uint32_t>(p << 1U | 1U));
        }
    }

    void add(int stage, const FluidState& state, std::uint32_t origin) {
        const double bound = stage < model_.stages() ? model_.lower_bound(stage, state)
                                                     : model_.compute() + state.idle + model_.turn_idle(state);
        ++best_.states;
        if (bound < best_.makespan) {
            nodes_.push_back({state, bound, origin});
        }
    }

    // Keeps the `width` most promising nodes; returns the least bound of the others.
    double narrow(std::size_t width) {
        if (nodes_.size() <= width) {
            return infinity;
        }
        const auto promise = [](const Node& a, const Node& b) {
            return std::tuple(a.bound, a.state.held, a.origin) < std::tuple(b.bound, b.state.held, b.origin);
        };
        const auto cut = nodes_.begin() + static_cast<std::ptrdiff_t>(width);
        std::nth_element(nodes_.begin(), cut, nodes_.end(), promise);
        const double dropped = cut->bound;
        nodes_.resize(width);
        return dropped;
    }

    // Drops dominated nodes; the rest becomes the next stage's states. Returns infinity, or, when told to stop, the
    // least bound among all nodes.
    double filter(int i, std::vector<FluidState>& next, std::vector<std::uint32_t>& origins) {
        next.clear();
        next.reserve(nodes_.size());
        origins.reserve(nodes_.size());
        if (nodes_.size() <= few_states) {
            for (const Node& node : nodes_) {
                next.push_back(node.state);
                origins.push_back(node.origin);
            }
            return infinity;
        }
        order_.clear();
        for (const Node& node : nodes_) {
            order_.push_back({node.state.held, node.state.idle, static_cast<std::uint32_t>(order_.size())});
        }
        std::sort(order_.begin(), order_.end());
        filter_.clear();
        for (const Rank& rank : order_) {
            const Node& node = nodes_[rank.node];
            if ((++compared_ & 255U) == 0 && progress_.tick(static_cast<double>(i) / model_.stages()) && !first_pass_) {
                stopped_ = true;
                return least_bound();
            }
            if (!filter_.dominated(node.state)) {
                filter_.keep(node.state);
                next.push_back(node.state);
                origins.push_back(node.origin);
            }
        }
        return infinity;
    }

    void finish(const std::vector<FluidState>& last) {
        std::size_t winner = last.size();
        double moved = infinity;
        for (std::size_t s = 0; s < last.size(); ++s) { // on ties the set that moves less
            const double makespan = model_.compute() + last[s].idle + model_.turn_idle(last[s]);
            if (makespan < best_.makespan ||
                (winner < last.size() && makespan == best_.makespan && last[s].moved < moved)) {
                best_.makespan = makespan;
                moved = last[s].moved;
                winner = s;
            }
        }
        if (winner == last.size()) {
            return;
        }
        best_.offloaded.assign(origins_.size(), 0);
        for (std::size_t i = origins_.size(); i-- > 0;) {
            best_.offloaded[i] = origins_[i][winner] & 1U;
            winner = origins_[i][winner] >> 1U;
        }
    }

    const FluidChain& chain_;
    FluidModel model_;
    std::optional<FluidWalk> walk_; // made when it is first needed
    const DynprogOptions& options_;
    const Progress& progress_;
    double root_bound_ = 0;
    double proven_ = 0;
    bool stopped_ = false, first_pass_ = true;
    DynprogSolution best_;
    std::vector<Node> nodes_;
    std::vector<Rank> order_;
    std::size_t compared_ = 0;
    std::vector<std::vector<std::uint32_t>> origins_; // per stage, of the kept states
    DominanceFilter filter_;
};

} // namespace

DynprogSolution dynprog(const FluidChain& chain, const DynprogOptions& options, const Progress& progress) {
    check_fluid_chain(chain);
    const double least = fluid_min_capacity(chain);
    if (chain.capacity < least) {
        throw InfeasibleError("capacity " + show(chain.capacity) + " is below the largest need of one stage, " +
                                  show(least),
                              static_cast<Bytes>(std::ceil(least)));
    }
    return Search(chain, options, progress).run();
}

} // namespace memsched
