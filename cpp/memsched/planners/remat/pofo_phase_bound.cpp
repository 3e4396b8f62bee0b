#include "memsched/planners/remat/pofo_phase_bound.h"

#include "memsched/support/simd.h"

#include <algorithm>
#include <cmath>

namespace memsched {
namespace {

constexpr double slack = 1e-6; // of a slot: more than the search rounds by

// What a block does to the slots in transfer: it adds `shift`, within [low, high]. It waits `wait` seconds for each
// slot beyond `room`.
struct Move {
    float shift, low, high;
    float room, wait;
};

// out[d] = min(out[d], fixed + wait max(0, d - room) + next[clamp(d + shift, low, high)]) for begin <= d < end
MEMSCHED_CLONES void relax_row(float* __restrict out, const float* __restrict next, float fixed, const Move& move,
                               int begin, int end) {
    const auto [shift, low, high, room, wait] = move;
    for (int d = begin; d < end; ++d) {
        const auto x = static_cast<float>(d);
        const int place = static_cast<int>(std::min(std::max(x + shift, low), high));
        const float value = fixed + wait * std::max(0.0F, x - room) + next[place];
        out[d] = value < out[d] ? value : out[d];
    }
}

// The same for a block that may take longer than `fixed` says. Then less is in transfer after it, perhaps by a part of
// a slot; `next` rises by at most `wait` per slot, which bounds it between two cells.
MEMSCHED_CLONES void relax_row_longer(float* __restrict out, const float* __restrict next, float fixed,
                                      const Move& move, int begin, int end) {
    const auto [shift, low, high, room, wait] = move;
    for (int d = begin; d < end; ++d) {
        const auto x = static_cast<float>(d);
        const float place = std::min(std::max(x + shift, low), high);
        const int below = static_cast<int>(place);
        const float part = place - static_cast<float>(below);
        const float then = std::min(next[below] + wait * part, next[below + (part > 0 ? 1 : 0)]);
        const float value = fixed + wait * std::max(0.0F, x - room) + then;
        out[d] = value < out[d] ? value : out[d];
    }
}

} // namespace

struct PofoPhaseBound::Node {
    int layer;
    bool all;
    Bytes input;
    int last; // the last layer of any block worth considering
};

// A block in the phase that is followed. Its time is exact with fewer than `known` slots in transfer, and a lower bound
// with more; with `end` slots or more the block does not fit.
struct PofoPhaseBound::Block {
    int last;
    bool all;
    Seconds time, other; // without waits; in the other phase
    double room;         // slots in transfer for which it need not wait
    int known, end;
    bool may_stay;
};

PofoPhaseBound::PofoPhaseBound(const SegmentTable& table, const PofoOptions& options, Seconds limit, Workers& workers,
                               const Progress& progress)
    : table_(table), chain_(table.chain()), options_(options), slots_(table.fitting(options.capacity)), stride_(0) {
    stride_ = index(Phase::forward, 0, false, slots_ + 1);
    values_.assign(4 * (at(chain_.layers) + 1) * stride_, no_fit);
    for (int i = chain_.layers; i >= 1; --i) {
        int last = i; // the forwards of a block run again
        while (last + 1 < chain_.layers && chain_.ideal(1, chain_.layers) + chain_.forward_sum(i, last + 1) < limit) {
            ++last;
        }
        workers.each(4, [&](int task, int) {
            const bool all = task % 2 == 1;
            if (i > 1 || !all) {
                fill(static_cast<Phase>(task / 2), {i, all, chain_.input(i, all), last});
            }
        });
        if (progress.tick(1 - static_cast<double>(i) / chain_.layers)) {
            throw Stopped{};
        }
    }
}

// relax() relies on rows that rise with the slots in transfer, by at most the time of one slot per cell. Rounding to
// slots breaks both rules slightly, so they are restored here.
void PofoPhaseBound::fill(Phase phase, const Node& node) {
    const auto slot_time = static_cast<float>(1 / speed(phase));
    for (int free = 0; free <= slots_; ++free) {
        fill_row(phase, node, free);
        float* row = values_.data() + index(phase, node.layer, node.all, free);
        for (int d = 1; d < cells(free); ++d) {
            row[d] = std::min(row[d], row[d - 1] + slot_time);
        }
        for (int d = cells(free) - 1; d-- > 0;) {
            row[d] = std::min(row[d], row[d + 1]);
        }
    }
}

// Tries the blocks that Expansion in pofo.cpp tries, with lower bounds on the times of their segments.
void PofoPhaseBound::fill_row(Phase phase, const Node& node, int free) {
    const int i = node.layer, end = cells(free);
    const bool forward = phase == Phase::forward;
    const Bytes room = options_.capacity - (slots_ - free) * table_.width() - node.input;
    if (room < 0) {
        return;
    }
    const auto all = static_cast<double>(chain_.need_all(i)), back = static_cast<double>(chain_.need_backward(i));
    const Seconds backward = chain_.backward[at(i)];
    if (std::max(all, back) <= static_cast<double>(room)) {
        if (i == chain_.layers) { // the loss takes no time, so it waits for all transfers
            float* out = values_.data() + index(phase, i, node.all, free);
            for (int d = 0; d < end; ++d) {
                out[d] = static_cast<float>(d / speed(phase));
            }
            return;
        }
        const Seconds time = forward ? chain_.forward[at(i)] : backward;
        const double beside = in_slots(static_cast<double>(room) - (forward ? all : back));
        follow(phase, node, free, {i, true, time, forward ? backward : 0, beside, end, end, true});
    }
    if (i < chain_.layers) {
        fill_segments(phase, node, free, room);
    }
}

void PofoPhaseBound::fill_segments(Phase phase, const Node& node, int free, Bytes room) {
    const int i = node.layer, end = cells(free);
    const int slots = table_.fitting(room);
    double need = 0;
    Bytes without_input = 0;
    for (int j = i; j <= node.last; ++j) {
        const Bytes own = j == i ? chain_.need_first(j) : chain_.need_next(j);
        without_input = j == i ? 0 : std::max(without_input, own);
        if ((j == i && own > room) || without_input > room + node.input) {
            break;
        }
        const Seconds before = chain_.forward_sum(i, j - 1);
        need = std::max(need, static_cast<double>(own) - (before > 0 ? options_.d2h * before : 0.0));
        if (slots < table_.least(i, j)) {
            continue;
        }
        const float* extra = table_.row(i, j);
        const Seconds segment = chain_.ideal(i, j) + static_cast<Seconds>(extra[slots]);
        const bool stays = without_input <= room;
        if (phase == Phase::forward) {
            const double beside = in_slots(static_cast<double>(room) - need);
            follow(phase, node, free, {j, false, chain_.forward_sum(i, j), segment, beside, end, end, stays});
            continue;
        }
        int known = 1; // with fewer slots in transfer the segment is as fast as with none
        while (known <= slots && extra[slots - known] == extra[slots]) {
            ++known;
        }
        const double beside = slots - in_slots(static_cast<double>(chain_.need_backward(i)));
        follow(phase, node, free, {j, false, segment, 0, beside, known, std::min(slots + 1, end), stays});
    }
}

void PofoPhaseBound::follow(Phase phase, const Node& node, int free, const Block& block) {
    if (block.may_stay) {
        relax(phase, node, free, block, false);
    }
    if (node.input > 0 && (!options_.host || node.input <= *options_.host)) {
        relax(phase, node, free, block, true);
    }
}

// After a block that had to wait, as much is in transfer as just fitted beside it.
void PofoPhaseBound::relax(Phase phase, const Node& node, int free, const Block& block, bool leaves) {
    const int next_free = leaves ? free : free - static_cast<int>(table_.covering(node.input));
    if (next_free < 0) {
        return;
    }
    const bool instant = std::isinf(speed(phase));
    const double input = leaves && !instant ? in_slots(static_cast<double>(node.input)) : 0.0;
    const double change = input - (instant || block.time == 0 ? 0.0 : speed(phase) * block.time);
    const auto up = [](double slots) { return std::ceil(slots - slack); };
    const auto most = static_cast<double>(cells(next_free) - 1);
    const double low = std::min(up(phase == Phase::forward ? 0.0 : input), most);
    const double high = instant ? low : std::clamp(block.room + change, low, most);
    const auto fixed = static_cast<float>(phase == Phase::forward ? block.other : block.time);
    const float* next = values_.data() + index(phase, block.last + 1, block.all, next_free);
    float* out = values_.data() + index(phase, node.layer, node.all, free);
    if (fixed + next[static_cast<int>(low)] >= out[block.end - 1]) { // rows rise
        return;
    }
    Move move{static_cast<float>(up(change)), static_cast<float>(low), static_cast<float>(std::max(low, up(high))),
              static_cast<float>(block.room), static_cast<float>(1 / speed(phase))};
    const int known = std::min(block.known, block.end);
    relax_row(out, next, fixed, move, 0, known);
    if (known < block.end) {
        move.shift = static_cast<float>(change);
        move.high = static_cast<float>(high);
        relax_row_longer(out, next, fixed, move, known, block.end);
    }
}

Seconds PofoPhaseBound::remaining(int layer, bool all, int free, const PofoState& state) const {
    const auto left = [&](Phase phase, double bytes) { // between two cells as in relax_row_longer
        const double place = std::min(in_slots(bytes), static_cast<double>(cells(free) - 1));
        const int below = static_cast<int>(place), above = std::min(below + 1, cells(free) - 1);
        const float* row = values_.data() + index(phase, layer, all, free);
        return std::min(row[below] + (place - below) / speed(phase), static_cast<Seconds>(row[above]));
    };
    return chain_.forward_sum(layer, chain_.layers) +
           std::max(left(Phase::forward, state.leaving), left(Phase::backward, state.arriving));
}

} // namespace memsched
