#include "memsched/planners/modnn/foresight.h"

#include <limits>
#include <optional>

namespace memsched {
bool ModnnForesight::fits(OpId i, OpId s, ModnnLayout layout) const {
    finish(i, layout);
    for (OpId u = i + 1; u <= s; ++u) {
        if (!prepare(u, layout)) {
            return false;
        }
        finish(u, layout);
    }
    return true;
}

bool ModnnForesight::prepare(OpId u, ModnnLayout& layout) const {
    Flags protects(layout.here.size(), 0);
    Tensors absent;
    for (const TensorId t : facts_.graph.op(u).reads) {
        protects[at(t)] = 1;
        if (!layout.here[at(t)]) {
            absent.push_back(t);
        }
    }
    for (const TensorId t : facts_.graph.op(u).writes) {
        protects[at(t)] = 1;
    }
    for (const TensorId t : facts_.by_size(absent)) {
        if (!take(t, facts_.bytes(t), protects, layout)) {
            return false;
        }
        layout.here[at(t)] = 1;
    }
    for (const TensorId t : facts_.by_size(facts_.graph.op(u).writes)) {
        if (!take(t, facts_.bytes(t), protects, layout)) {
            return false;
        }
    }
    const Bytes scratch = facts_.base_workspace(u);
    if (scratch > 0 && !take(Segment::workspace, scratch, protects, layout)) {
        return false;
    }
    return true;
}

bool ModnnForesight::take(TensorId owner, Bytes bytes, const Flags& protects, ModnnLayout& layout) const {
    const bool top = facts_.goes_to_top(owner);
    auto low = layout.memory.first_fit(bytes, top);
    if (!low) {
        const auto may_go = [&](TensorId t) { return t >= 0 && !protects[at(t)] && layout.used[at(t)]; };
        const std::vector<Segment> segments = layout.memory.segments();
        Bytes fewest = std::numeric_limits<Bytes>::max();
        std::optional<Window> best;
        for (const Window& window : windows(layout.memory, bytes, may_go)) {
            Bytes evicted = 0;
            for (std::size_t k = window.first; k <= window.last; ++k) {
                evicted += segments[k].owner == Segment::free ? 0 : segments[k].bytes();
            }
            if (evicted < fewest) {
                fewest = evicted;
                best = window;
            }
        }
        if (!best) {
            return false;
        }
        for (std::size_t k = best->first; k <= best->last; ++k) {
            if (const TensorId t = segments[k].owner; t != Segment::free) {
                layout.memory.remove(t);
                layout.here[at(t)] = 0;
            }
        }
        low = top ? segments[best->last].high - bytes : segments[best->first].low;
    }
    layout.memory.place(owner, *low, bytes);
    if (owner >= 0) {
        layout.used[at(owner)] = 0;
    }
    return true;
}

void ModnnForesight::finish(OpId op, ModnnLayout& layout) const {
    layout.memory.remove(Segment::workspace);
    for (const TensorId t : facts_.graph.op(op).reads) {
        layout.used[at(t)] = 1;
    }
    for (const TensorId t : facts_.graph.op(op).writes) {
        layout.used[at(t)] = 0;
        layout.here[at(t)] = 1;
    }
    for (const TensorId t : facts_.over[at(op)]) {
        if (layout.here[at(t)]) {
            layout.here[at(t)] = 0;
            layout.memory.remove(t);
        }
    }
}

} // namespace memsched
