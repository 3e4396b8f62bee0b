// Lists in which tensors leave as soon as they can.
#pragma once

#include "memsched/model/schedule.h"
#include "memsched/support/id_lists.h"

#include <vector>

namespace memsched {

// The order of the items, by index, in which each free comes right after the last item before it that touches its
// tensor; all others stay in order. verb(item): what it does; all but a free touch what they name on the device.
template <class Item, class VerbOf>
std::vector<std::int32_t> free_early(const Graph& graph, const std::vector<Item>& items, const VerbOf& verb) {
    std::vector<std::int32_t> touched(graph.tensors().size(), 0), behind; // counted from 1; 0: before all
    for (const Item& item : items) {
        std::int32_t here = static_cast<std::int32_t>(behind.size()) + 1;
        if (verb(item) == Verb::run) {
            for (const auto* side : {&graph.op(item.id).reads, &graph.op(item.id).writes}) {
                for (const TensorId t : *side) {
                    touched[at(t)] = here;
                }
            }
        } else if (verb(item) == Verb::free) {
            here = touched[at(item.id)];
        } else if (verb(item) != Verb::update) {
            touched[at(item.id)] = here;
        }
        behind.push_back(here);
    }
    return IdLists(items.size() + 1,
                   [&](const auto& put) {
                       for (std::size_t k = 0; k < behind.size(); ++k) {
                           put(at(behind[k]), static_cast<std::int32_t>(k));
                       }
                   })
        .joined();
}

} // namespace memsched
