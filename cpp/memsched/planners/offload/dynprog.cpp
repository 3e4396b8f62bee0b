#include "memsched/planners/offload/dynprog.h"

#include "memsched/planners/offload/dynprog_stage.h"
#include "memsched/planners/offload/flip_move.h"
#include "memsched/support/errors.h"
#include "memsched/support/id_lists.h"
#include "memsched/support/late_acceptance.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>

namespace memsched {
namespace {

constexpr std::size_t first_width = 64;
constexpr std::size_t width_growth = 8;
constexpr std::size_t walk_per_width = 32; // sets that the local search tries after a pass, per state of its width
constexpr std::size_t few_states = 56;     // not worth sorting for dominance
constexpr std::uint32_t nowhere = ~0U;
constexpr std::size_t asked_after = 256; // states between two checks whether to stop

// A child of a state of the stage, and the bound by which the most promising are chosen.
struct Node {
    double bound;
    std::uint32_t child; // parent << 1 | offloaded
};

// The order in which nodes are compared: what dominates comes first.
struct Rank {
    double held, idle;
    std::uint32_t place, child;

    bool operator<(const Rank& other) const {
        const bool first = (idle < other.idle) | ((idle == other.idle) & (place < other.place)); // branch-free
        return (held < other.held) | ((held == other.held) & first);
    }
};

// Sorts ranks that are nearly in order.
class RankList {
  public:
    void clear() {
        ranks_.clear();
        moved_ = 0;
    }
    void add(const Rank& rank) {
        std::size_t at = ranks_.size();
        ranks_.push_back(rank);
        for (; at > 0 && moved_ < most_moved && rank < ranks_[at - 1]; --at) {
            ranks_[at] = ranks_[at - 1];
            ++moved_;
        }
        ranks_[at] = rank;
    }
    void sort() {
        if (moved_ >= most_moved) {
            std::sort(ranks_.begin(), ranks_.end());
        }
    }
    const Rank* begin() const { return ranks_.data(); }
    const Rank* end() const { return ranks_.data() + ranks_.size(); }

  private:
    static constexpr std::size_t most_moved = 512;

    std::vector<Rank> ranks_;
    std::size_t moved_ = 0;
};

// Local search over offload sets in the interruptible model: finds sets whose size matches the bytes that must leave,
// where the beam of the dynamic program is too narrow.
class FluidWalk {
  public:
    explicit FluidWalk(const FluidModel& model)
        : model_(model), stages_(all_ids(at(model.stages()))), states_(stages_.size() + 1, model.initial()) {}

    // Walks from a feasible set; deterministic. Returns after `evaluations` sets, or when the makespan reaches
    // `target`. The best set found is in offloaded(), its makespan the return value.
    double run(const std::vector<std::uint8_t>& from, double makespan, double target, std::size_t evaluations) {
        current_ = best_ = from;
        valid_ = 0;
        double best = makespan;
        walk_.restart(makespan);
        for (std::size_t move = 0; move < evaluations && best > target; ++move) {
            const auto flipped = move_.apply(current_, stages_, random_);
            const std::size_t first = *std::ranges::min_element(flipped);
            const double found = evaluate(first);
            if (!walk_.accept(found)) {
                move_.undo(current_);
                valid_ = std::min(valid_, first);
            } else if (found < best) {
                best = found;
                best_ = current_;
            }
        }
        return best;
    }
    const std::vector<std::uint8_t>& offloaded() const { return best_; }

  private:
    double evaluate(std::size_t first_changed) {
        valid_ = std::min(valid_, first_changed);
        const std::size_t stages = current_.size();
        for (; valid_ < stages; ++valid_) {
            FluidState kept{}, gone{};
            if (!model_.stage(static_cast<int>(valid_)).advance(states_[valid_], kept, gone)) {
                return infinity;
            }
            states_[valid_ + 1] = current_[valid_] ? gone : kept;
        }
        return model_.makespan(states_[stages]);
    }

    const FluidModel& model_;
    std::mt19937_64 random_{0};
    FlipMove move_;
    LateAcceptance walk_{256};
    std::vector<std::int32_t> stages_;
    std::vector<std::uint8_t> current_, best_;
    std::vector<FluidState> states_; // of the current set, before each stage; valid up to valid_
    std::size_t valid_ = 0;
};

class Search {
  public:
    Search(const FluidChain& chain, const DynprogOptions& options, const Progress& progress)
        : chain_(chain), model_(chain), options_(options), progress_(progress) {}

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
            if (stopped_ || width > options_.max_states || close_enough() ||
                best_.makespan == infinity) { // sizes beyond the precision of a double
                break;
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
        origins_.assign(at(stages), {});
        current_.assign(model_.initial());
        std::size_t kept_states = 0;
        double dropped = infinity;
        for (int i = 0; i < stages; ++i) {
            if (told_to_stop(i)) {
                return std::min({dropped, least_bound_of_states(i), best_.makespan});
            }
            expand(i);
            if (!first_pass_ && too_many(kept_states)) {
                stopped_ = true;
                return std::min({dropped, least_bound(), best_.makespan});
            }
            dropped = std::min(dropped, narrow(width));
            dropped = std::min(dropped, filter(i, origins_[at(i)]));
            kept_states += current_.size();
            if (stopped_) {
                return std::min(dropped, best_.makespan);
            }
        }
        finish();
        return dropped;
    }

    bool told_to_stop(int i) {
        stopped_ |= progress_.tick(static_cast<double>(i) / model_.stages()) && !first_pass_;
        return stopped_;
    }

    double least_bound_of_states(int i) const {
        double least = infinity;
        for (std::size_t p = 0; p < current_.size(); ++p) {
            least = std::min(least, model_.bound(i).of(current_[p]));
        }
        return least;
    }

    void expand(int i) {
        const bool last = i + 1 == model_.stages();
        best_.states += advance_all(model_.stage(i), last ? nullptr : &model_.bound(i + 1), current_, children_);
        nodes_.resize(2 * current_.size());
        std::size_t count = 0;
        for (std::uint32_t child = 0; child < 2 * current_.size(); ++child) {
            double bound = children_.bound[child & 1U][child >> 1U];
            if (last && bound < infinity) {
                bound = model_.makespan(children_[child]);
            }
            nodes_[count] = {bound, child};
            count += bound < best_.makespan ? 1 : 0;
        }
        nodes_.resize(count);
    }

    // Keeps the `width` most promising nodes; returns the least bound of the others.
    double narrow(std::size_t width) {
        if (nodes_.size() <= width) {
            return infinity;
        }
        const auto promise = [&](const Node& a, const Node& b) {
            if (a.bound != b.bound) {
                return a.bound < b.bound;
            }
            const double one = held(a.child), other = held(b.child);
            return one != other ? one < other : a.child < b.child;
        };
        const auto cut = nodes_.begin() + static_cast<std::ptrdiff_t>(width);
        std::nth_element(nodes_.begin(), cut, nodes_.end(), promise);
        const double dropped = cut->bound;
        nodes_.resize(width);
        return dropped;
    }

    double held(std::uint32_t child) const { return children_.of[child & 1U].held[child >> 1U]; }
    double idle(std::uint32_t child) const { return children_.of[child & 1U].idle[child >> 1U]; }

    // Drops dominated nodes; the rest becomes the next stage's states. Returns infinity, or, when told to stop, the
    // least bound among all nodes.
    double filter(int i, std::vector<std::uint32_t>& kept) {
        kept.reserve(nodes_.size());
        chosen_.resize(nodes_.size());
        for (std::size_t k = 0; k < nodes_.size(); ++k) {
            chosen_[k] = nodes_[k].child;
        }
        if (nodes_.size() <= few_states) {
            kept = chosen_;
        } else {
            sort();
            filter_.restart(chosen_.size());
            for (std::size_t k = 0; k < chosen_.size(); k += asked_after) {
                if (k > 0 && told_to_stop(i)) {
                    return least_bound();
                }
                filter_.run(&chosen_[k], std::min(asked_after, chosen_.size() - k), children_, kept);
            }
        }
        children_.gather(kept, current_);
        return infinity;
    }

    // Puts the chosen children in the order of their ranks. States are mostly in that order, and so are the children
    // that keep x_i, and those that offload it.
    void sort() {
        place_.assign(2 * current_.size(), nowhere);
        for (std::size_t k = 0; k < chosen_.size(); ++k) {
            place_[chosen_[k]] = static_cast<std::uint32_t>(k);
        }
        for (const std::uint32_t side : {0U, 1U}) {
            RankList& ranks = ranks_[side];
            ranks.clear();
            for (std::uint32_t child = side; child < place_.size(); child += 2) {
                if (place_[child] != nowhere) {
                    ranks.add({held(child), idle(child), place_[child], child});
                }
            }
            ranks.sort();
        }
        const Rank *a = ranks_[0].begin(), *b = ranks_[1].begin();
        for (std::uint32_t& child : chosen_) {
            const bool second = a == ranks_[0].end() || (b != ranks_[1].end() && *b < *a);
            child = (second ? b : a)->child;
            a += second ? 0 : 1;
            b += second ? 1 : 0;
        }
    }

    void finish() {
        std::size_t winner = current_.size();
        double moved = infinity;
        for (std::size_t s = 0; s < current_.size(); ++s) { // on ties the set that moves less
            const double makespan = model_.makespan(current_[s]);
            if (makespan < best_.makespan ||
                (winner < current_.size() && makespan == best_.makespan && current_.moved[s] < moved)) {
                best_.makespan = makespan;
                moved = current_.moved[s];
                winner = s;
            }
        }
        if (winner < current_.size()) {
            best_.offloaded = offloaded_on_way(origins_, winner);
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
    DynprogSolution best_{{}, infinity};
    FluidStates current_;
    FluidChildren children_;
    std::vector<Node> nodes_;
    std::vector<std::uint32_t> chosen_; // of the nodes, and then in the order of their ranks
    std::vector<std::uint32_t> place_;  // of a child among the nodes
    RankList ranks_[2];
    StateOrigins origins_; // of the kept states
    DominanceFilter filter_;
};

} // namespace

DynprogSolution dynprog(const FluidChain& chain, const DynprogOptions& options, const Progress& progress) {
    check_fluid_chain(chain);
    if (chain.capacity < fluid_min_capacity(chain)) {
        refuse_capacity(chain);
    }
    return Search(chain, options, progress).run();
}

void refuse_capacity(const FluidChain& chain) {
    const double least = fluid_min_capacity(chain);
    throw InfeasibleError("capacity " + show(chain.capacity) + " is below the largest need of one stage, " +
                              show(least),
                          static_cast<Bytes>(std::ceil(least)));
}

std::vector<std::uint8_t> offloaded_on_way(const StateOrigins& origins, std::size_t winner) {
    std::vector<std::uint8_t> offloaded(origins.size(), 0);
    for (std::size_t i = origins.size(); i-- > 0;) {
        offloaded[i] = origins[i][winner] & 1U;
        winner = origins[i][winner] >> 1U;
    }
    return offloaded;
}

} // namespace memsched
