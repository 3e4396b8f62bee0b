#include "memsched/planners/pofo_front.h"

#include <algorithm>
#include <limits>

namespace memsched {
namespace {

constexpr Seconds never = std::numeric_limits<Seconds>::infinity();
constexpr double slack = 1e-6; // of a bound in single precision

} // namespace

PofoFront::PofoFront(const SegmentTable& table, const PofoOptions& options, int beam)
    : table_(table), d2h_(options.linked() ? options.d2h : 1), h2d_(options.linked() ? options.h2d : 1),
      exact_(options.exact), beam_(beam), waiting_(2 * (static_cast<std::size_t>(table.chain().layers) + 2)) {}

bool PofoFront::dominates(const PofoLabel& a, const PofoLabel& b) const {
    return a.state.held <= b.state.held && a.cost + std::max(0.0, a.state.leaving - b.state.leaving) / d2h_ +
                                                   std::max(0.0, a.state.arriving - b.state.arriving) / h2d_ <=
                                               b.cost;
}

void PofoFront::start() { add(1, false, PofoLabel{}); }

// With everything in slots: the least cost at which each cell is reached, from its neighbours with less, and from those
// with more by waiting.
void PofoFront::thin_out(std::vector<PofoLabel>& labels) const {
    const auto width = static_cast<double>(table_.width());
    const auto slots = [&](double bytes) { return static_cast<std::size_t>(bytes / width + 0.5); };
    std::size_t held = 0, leaving = 0, arriving = 0;
    for (const PofoLabel& l : labels) {
        held = std::max(held, slots(static_cast<double>(l.state.held)));
        leaving = std::max(leaving, slots(l.state.leaving));
        arriving = std::max(arriving, slots(l.state.arriving));
    }
    const std::size_t row = arriving + 1, plane = row * (leaving + 1);
    const auto cell = [&](const PofoLabel& l) {
        return slots(static_cast<double>(l.state.held)) * plane + slots(l.state.leaving) * row +
               slots(l.state.arriving);
    };
    std::vector<Seconds> least(plane * (held + 1), never);
    for (const PofoLabel& label : labels) {
        Seconds& cost = least[cell(label)];
        cost = std::min(cost, label.cost);
    }
    struct Axis {
        std::size_t stride, count;
        Seconds wait; // for one slot less
    };
    const Axis axes[] = {{1, arriving + 1, width / h2d_}, {row, leaving + 1, width / d2h_}, {plane, held + 1, never}};
    for (const Axis& axis : axes) { // lines along the axis, from less to more and back
        for (std::size_t outer = 0; outer < least.size(); outer += axis.stride * axis.count) {
            for (std::size_t k = 1; k < axis.count; ++k) {
                Seconds* line = least.data() + outer + k * axis.stride;
                for (std::size_t inner = 0; inner < axis.stride; ++inner) {
                    line[inner] = std::min(line[inner], (line - axis.stride)[inner]);
                }
            }
            for (std::size_t k = axis.count - 1; k-- > 0 && axis.wait < never;) {
                Seconds* line = least.data() + outer + k * axis.stride;
                for (std::size_t inner = 0; inner < axis.stride; ++inner) {
                    line[inner] = std::min(line[inner], line[axis.stride + inner] + axis.wait);
                }
            }
        }
    }
    std::vector<std::uint8_t> seen(least.size(), 0);
    std::erase_if(labels, [&](const PofoLabel& label) {
        const std::size_t at = cell(label);
        bool beaten = label.cost > least[at] || seen[at] != 0;
        for (const Axis& axis : axes) {
            const std::size_t place = at / axis.stride % axis.count;
            beaten = beaten || (place > 0 && least[at - axis.stride] <= label.cost) ||
                     (place + 1 < axis.count && least[at + axis.stride] + axis.wait <= label.cost);
        }
        seen[at] |= beaten ? 0 : 1;
        return beaten;
    });
}

std::vector<std::int32_t> PofoFront::take(int layer, bool all, const PofoBound& bound, Seconds limit) {
    std::vector<PofoLabel> labels;
    labels.swap(waiting(layer, all));
    if (exact_ && beam_ == 0) {
        thin_out(labels);
    }
    std::vector<std::pair<Seconds, std::size_t>> order;
    for (std::size_t at = 0; at < labels.size(); ++at) {
        const Seconds least = labels[at].cost + bound.remaining(layer, all, labels[at].state) * (1 - slack);
        if (least < limit) {
            order.emplace_back(least, at);
        }
    }
    std::sort(order.begin(), order.end());
    return keep(order, labels);
}

std::vector<std::int32_t> PofoFront::keep(std::vector<std::pair<Seconds, std::size_t>>& order,
                                          const std::vector<PofoLabel>& labels) {
    std::vector<std::int32_t> ids;
    for (const auto& [least, at] : order) {
        if (beam_ > 0) {
            if (static_cast<int>(ids.size()) == beam_) {
                break;
            }
            const bool beaten =
                std::any_of(ids.begin(), ids.end(), [&](std::int32_t id) { return dominates(label(id), labels[at]); });
            if (beaten) {
                continue;
            }
        }
        ids.push_back(static_cast<std::int32_t>(kept_.size()));
        kept_.push_back(labels[at]);
    }
    return ids;
}

} // namespace memsched
