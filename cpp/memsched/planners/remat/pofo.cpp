#include "memsched/planners/remat/pofo.h"

#include "memsched/planners/remat/pofo_front.h"

#include <algorithm>
#include <atomic>
#include <cmath>

namespace memsched {
namespace {

// The bytes in transfer (Delta) that remain after some time.
double after(double bytes, Bandwidth speed, Seconds time) {
    return std::isinf(speed) || bytes == 0 ? 0.0 : std::max(0.0, bytes - speed * time);
}

// Bytes in transfer as slots, rounded up.
Bytes owed_slots(const SegmentTable& table, double bytes) {
    return static_cast<Bytes>(std::ceil(bytes / static_cast<double>(table.width()) - 1e-7));
}

// Whether all threads must stop. Only the caller's thread checks progress.
class Halt {
  public:
    Halt(const Progress& progress, Workers& workers) : progress_(progress), workers_(workers) {}

    // For the caller's thread only.
    void hear() {
        try {
            if (progress_.tick(0)) {
                told_ = true;
            }
        } catch (...) {
            told_ = true;
            throw;
        }
    }

    // For any thread: throws Stopped when told to stop, except while a plan is written down.
    void heed(int worker) {
        if (writing) {
            return;
        }
        if (worker == 0) {
            hear();
        } else {
            workers_.wake();
        }
        if (told_) {
            throw Stopped{};
        }
    }

    bool writing = false;

  private:
    const Progress& progress_;
    Workers& workers_;
    std::atomic<bool> told_{false};
};

// All blocks that may follow one state of the forward phase (section B.2).
class Expansion {
  public:
    Expansion(const SegmentTable& table, const PofoOptions& options, const PofoBound& bound, Halt& halt, int worker)
        : table_(table), chain_(table.chain()), options_(options), bound_(bound),
          segments_(table, options.linked() ? options.h2d : 1.0, [&halt, worker] { halt.heed(worker); }) {}

    // Each block turns a state of layer `i` into one or two labels; labels that cannot lead below the limit are left
    // out.
    void run(int i, bool all, std::int32_t id, const PofoLabel& label, Seconds limit, std::vector<PofoLabel>& next) {
        start(i, all, id, label, limit, next);
        if (std::max(chain_.need_all(i), chain_.need_backward(i)) <= free_) {
            const auto [forward, backward] = saving(i);
            follow({i, i, true, all, false}, forward, backward, true);
        }
        const int slots = table_.fitting(free_);
        if (slots < 0) {
            return;
        }
        const Bytes owed = owed_slots(table_, label.state.arriving);
        double need = 0;         // of the forwards, minus what the link has sent since the first
        Bytes without_input = 0; // of the forwards after the first
        for (int j = i; j < chain_.layers; ++j) {
            const Bytes own = j == i ? chain_.need_first(j) : chain_.need_next(j);
            without_input = j == i ? 0 : std::max(without_input, own);
            const Seconds before = chain_.forward_sum(i, j - 1);
            if ((j == i && own > free_) || without_input > free_ + input_ ||
                label.cost + chain_.ideal(i, chain_.layers) + before + chain_.forward[at(j)] >= limit_) {
                break; // the block's forwards run again
            }
            need = std::max(need, static_cast<double>(own) - (before > 0 ? options_.d2h * before : 0.0));
            if (slots < table_.least(i, j)) {
                continue;
            }
            const PofoBlock block{i, j, false, all, false};
            may_stay_ = without_input <= free_; // else only what leaves makes room for the forwards
            const Seconds forward = chain_.forward_sum(i, j) + wait(need + taken_ + label.state.leaving, options_.d2h);
            if (follow(block, forward, segments_.least(i, j, slots, owed), false)) {
                const Seconds backward = segments_.time(i, j, slots, owed);
                if (backward < never) {
                    follow(block, forward, backward, true);
                }
            }
        }
    }

    // The whole time if the loss follows; bytes still in transfer take extra time.
    Seconds finish(bool all, const PofoLabel& label) {
        const int i = chain_.layers;
        std::vector<PofoLabel> none;
        start(i, all, -1, label, never, none);
        if (std::max(chain_.need_all(i), chain_.need_backward(i)) > free_) {
            return never;
        }
        const auto [forward, backward] = saving(i);
        Seconds cost = label.cost + forward + backward;
        if (options_.linked()) {
            cost += after(label.state.leaving, options_.d2h, forward) / options_.d2h +
                    after(label.state.arriving, options_.h2d, backward) / options_.h2d;
        }
        return cost;
    }

    LinkedSegments& segments() { return segments_; }

  private:
    void start(int i, bool all, std::int32_t id, const PofoLabel& label, Seconds limit, std::vector<PofoLabel>& next) {
        id_ = id;
        label_ = &label;
        limit_ = limit * (1 + bound_.slack());
        next_ = &next;
        input_ = chain_.input(i, all);
        free_ = options_.capacity - label.state.held - input_;
        taken_ = static_cast<double>(label.state.held + input_);
        kept_ = label.state.held + (options_.exact ? table_.covering(input_) * table_.width() : input_);
        stay_slot_ = bound_.slot(kept_);
        leave_slot_ = bound_.slot(label.state.held);
        pair_ = bound_.best_pair(i, all, label.state);
        may_stay_ = true;
        may_leave_ = options_.linked() && input_ > 0 && (!options_.host || label.hosted + input_ <= *options_.host);
    }

    // Seconds until so many bytes fit, of which some are in transfer.
    Seconds wait(double bytes, Bandwidth speed) const {
        const double missing = bytes - static_cast<double>(options_.capacity);
        return missing > 0 ? missing / speed : 0.0;
    }

    std::pair<Seconds, Seconds> saving(int i) const {
        const auto all = static_cast<double>(chain_.need_all(i)), back = static_cast<double>(chain_.need_backward(i));
        return {chain_.forward[at(i)] + wait(all + taken_ + label_->state.leaving, options_.d2h),
                chain_.backward[at(i)] + wait(back + taken_ + label_->state.arriving, options_.h2d)};
    }

    double rounded(double bytes) const {
        const auto width = static_cast<double>(table_.width());
        return options_.exact ? std::ceil(bytes / width - 1e-7) * width : bytes;
    }

    // The states after a block, with its input kept and with its input sent (Table 2); with `keep` they are added.
    // Returns whether one of them may lead below the limit.
    bool follow(const PofoBlock& block, Seconds forward, Seconds backward, bool keep) {
        const PofoState& s = label_->state;
        const Seconds cost = label_->cost + forward + backward;
        const double arriving = after(s.arriving, options_.h2d, backward);
        bool any = false;
        const auto visit = [&](bool leaves, PofoState state, int slot) {
            state.leaving = rounded(state.leaving);
            if (keep) { // otherwise the segment may still take longer, and less be in transfer
                state.arriving = rounded(state.arriving);
            }
            if (cost + bound_.remaining(pair_, block.last + 1, block.all, slot, state) >= limit_) {
                return;
            }
            any = true;
            if (keep) {
                next_->push_back({cost, state, label_->hosted + (leaves ? input_ : 0), id_, block});
                next_->back().block.offloaded = leaves;
            }
        };
        if (may_stay_) {
            visit(false, {kept_, after(s.leaving, options_.d2h, forward), arriving}, stay_slot_);
        }
        if (may_leave_) {
            const auto bytes = static_cast<double>(input_);
            visit(true,
                  {s.held, after(s.leaving + bytes, options_.d2h, forward),
                   std::isinf(options_.h2d) ? 0.0 : arriving + bytes},
                  leave_slot_);
        }
        return any;
    }

    const SegmentTable& table_;
    const RematChain& chain_;
    const PofoOptions& options_;
    const PofoBound& bound_;
    LinkedSegments segments_;

    // The state at hand.
    std::int32_t id_ = -1;
    const PofoLabel* label_ = nullptr;
    Seconds limit_ = never;
    std::vector<PofoLabel>* next_ = nullptr;
    Bytes input_ = 0, free_ = 0, kept_ = 0; // kept_: held if the input stays
    double taken_ = 0;                      // held, and the input
    int pair_ = 0, stay_slot_ = 0, leave_slot_ = 0;
    bool may_stay_ = true, may_leave_ = true;
};

// The forward phase, layer by layer.
class ForwardPhase {
  public:
    ForwardPhase(const SegmentTable& table, const PofoOptions& options, const PofoBound& bound, Workers& workers,
                 std::vector<Expansion>& expansions, int beam, const Progress& progress, Halt& halt)
        : chain_(table.chain()), table_(table), options_(options), bound_(bound), workers_(workers),
          expansions_(expansions), front_(table, options, beam), progress_(progress), halt_(halt) {}

    // A plan faster than `limit`, if there is one. Throws Stopped when told to stop.
    std::optional<RematSolution> run(Seconds limit) {
        front_.add(1, false, {});
        for (int i = 1; i < chain_.layers; ++i) {
            for (const bool all : {false, true}) {
                expand(i, all, front_.take(i, all, bound_, limit), limit);
            }
        }
        std::int32_t last = -1;
        for (const bool all : {false, true}) {
            for (const std::int32_t id : front_.take(chain_.layers, all, bound_, limit)) {
                const Seconds time = expansions_[0].finish(all, front_.label(id));
                if (time < limit) {
                    limit = time;
                    last = id;
                }
            }
        }
        return last < 0 ? std::nullopt : std::optional(plan(last, limit));
    }

  private:
    // Each thread takes a range of the states; successors are collected in order.
    void expand(int i, bool all, const std::vector<std::int32_t>& ids, Seconds limit) {
        constexpr std::size_t share = 16;
        const std::size_t parts = (ids.size() + share - 1) / share;
        const auto round = at(4 * workers_.threads()); // progress is checked between rounds
        std::vector<std::vector<PofoLabel>> next(round);
        for (std::size_t from = 0; from < parts; from += round) {
            if (progress_.tick(static_cast<double>(i) / chain_.layers)) {
                throw Stopped{};
            }
            const auto states = [&](int part, int worker) {
                const auto into = at(part);
                const std::size_t begin = (from + into) * share;
                for (std::size_t k = begin; k < std::min(begin + share, ids.size()); ++k) {
                    expansions_[at(worker)].run(i, all, ids[k], front_.label(ids[k]), limit, next[into]);
                }
            };
            workers_.each(static_cast<int>(std::min(round, parts - from)), states, [&] { halt_.hear(); });
            for (auto& labels : next) {
                for (const PofoLabel& label : labels) {
                    front_.add(label.block.last + 1, label.block.all, label);
                }
                labels.clear();
            }
        }
        states_ += ids.size();
    }

    RematSolution plan(std::int32_t last, Seconds time) {
        halt_.writing = true;
        RematSolution plan;
        plan.time = time;
        plan.states = states_;
        std::vector<std::int32_t> path; // path[k] is the state before block k
        for (std::int32_t id = last; id >= 0; id = front_.label(id).parent) {
            path.push_back(id);
        }
        std::ranges::reverse(path);
        for (std::size_t k = 1; k < path.size(); ++k) {
            plan.blocks.push_back(front_.label(path[k]).block);
        }
        const bool all = !plan.blocks.empty() && plan.blocks.back().all;
        plan.blocks.push_back({chain_.layers, chain_.layers, true, all, false});
        plan.run_blocks([&](std::size_t k) {
            const PofoBlock& block = plan.blocks[k];
            const PofoState& state = front_.label(path[k]).state;
            const Bytes free = options_.capacity - state.held - chain_.input(block.first, block.input_saved);
            expansions_[0].segments().append(block.first, block.last, table_.fitting(free),
                                             owed_slots(table_, state.arriving), plan.sequence);
        });
        halt_.writing = false;
        return plan;
    }

    const RematChain& chain_;
    const SegmentTable& table_;
    const PofoOptions& options_;
    const PofoBound& bound_;
    Workers& workers_;
    std::vector<Expansion>& expansions_;
    PofoFront front_;
    const Progress& progress_;
    Halt& halt_;
    std::uint64_t states_ = 0;
};

// Beams of the quick passes that find a limit for the last pass: before and after the bounds are sharpened.
constexpr int scouts = 10, sharp_scouts = 30;

} // namespace

std::optional<RematSolution> pofo(const SegmentTable& table, const PofoOptions& options, Workers& workers,
                                  const Progress& progress) {
    std::optional<RematSolution> best = rotor(table, options.capacity); // without the link
    try {
        PofoBound bound(table, options, workers, progress);
        Halt halt(progress, workers);
        std::vector<Expansion> expansions;
        for (int worker = 0; worker < workers.threads(); ++worker) {
            expansions.emplace_back(table, options, bound, halt, worker);
        }
        const auto search = [&](int beam) {
            const Seconds limit = best ? best->time * (1 - 1e-12) : never;
            ForwardPhase phase(table, options, bound, workers, expansions, beam, progress, halt);
            if (auto found = phase.run(limit)) {
                best = std::move(found);
            }
        };
        search(scouts);
        if (options.exact && options.linked()) {
            bound.sharpen(best ? best->time : never, workers, progress);
            search(sharp_scouts);
        }
        search(options.exact ? 0 : options.beam);
    } catch (const Stopped&) { // keep the best so far
    }
    return best;
}

} // namespace memsched
