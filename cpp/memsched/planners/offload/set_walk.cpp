#include "memsched/planners/offload/set_walk.h"

namespace memsched {
namespace {

constexpr double price_of_everything = 1e-3; // moving every tensor costs as much as this share of the makespan

} // namespace

SetWalk::SetWalk(const Graph& graph, SetBuilder& builder, Bytes capacity, Simulator& simulator, std::mt19937_64& random)
    : graph_(graph), builder_(builder), capacity_(capacity), simulator_(simulator), random_(random) {
    double bytes = 0;
    for (const TensorId t : builder.movable()) {
        bytes += static_cast<double>(graph.tensor(t).bytes);
    }
    price_ = bytes > 0 ? price_of_everything / bytes : 0;
}

double SetWalk::value(const std::vector<std::uint8_t>& travels, Seconds makespan) const {
    double moved = 0;
    for (const TensorId t : builder_.movable()) {
        moved += travels[static_cast<std::size_t>(t)] ? static_cast<double>(graph_.tensor(t).bytes) : 0;
    }
    return makespan * (1 + price_ * moved);
}

Seconds SetWalk::evaluate(const std::vector<std::uint8_t>& travels) {
    return builder_.build(travels, capacity_, {}, list_) ? simulator_.makespan(list_) : Simulator::illegal;
}

void SetWalk::restart(const std::vector<std::uint8_t>& travels, Seconds makespan) {
    current_ = best_ = travels;
    best_makespan_ = makespan;
    walk_.restart(value(travels, makespan));
}

void SetWalk::perturb(const std::vector<std::uint8_t>& travels, Seconds makespan) {
    constexpr int tries = 8;
    for (int attempt = 0; attempt < tries; ++attempt) {
        std::vector<std::uint8_t> changed = travels;
        for (const TensorId t : builder_.movable()) {
            if (random_() % 4 == 0) {
                changed[static_cast<std::size_t>(t)] ^= 1U;
            }
        }
        const Seconds found = evaluate(changed);
        if (found < Simulator::illegal) {
            restart(changed, found);
            return;
        }
    }
    restart(travels, makespan);
}

bool SetWalk::run(std::size_t moves, Seconds target) {
    const Seconds before = best_makespan_;
    for (std::size_t move = 0; move < moves && best_makespan_ > target; ++move) {
        move_.apply(current_, builder_.movable(), random_);
        const Seconds found = evaluate(current_);
        if (!walk_.accept(value(current_, found))) {
            move_.undo(current_);
        } else if (found < best_makespan_) {
            best_makespan_ = found;
            best_ = current_;
        }
    }
    return best_makespan_ < before;
}

} // namespace memsched
