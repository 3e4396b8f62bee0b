// Lists of ids, concatenated.
#pragma once

#include "memsched/support/units.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace memsched {

class IdLists {
  public:
    using Ids = std::span<const std::int32_t>;

    IdLists() = default;
    explicit IdLists(const std::vector<std::vector<std::int32_t>>& lists) {
        for (const auto& list : lists) {
            ids_.insert(ids_.end(), list.begin(), list.end());
            first_.push_back(ids_.size());
        }
    }
    // each(put) calls put(list, id) for all entries, those of a list in its order; it is called twice.
    template <class Each> IdLists(std::size_t lists, const Each& each) : first_(lists + 1, 0) {
        each([this](std::size_t list, std::int32_t) { ++first_[list + 1]; });
        std::partial_sum(first_.begin(), first_.end(), first_.begin());
        ids_.resize(first_.back());
        std::vector<std::size_t> next(first_);
        each([&](std::size_t list, std::int32_t id) { ids_[next[list]++] = id; });
    }

    std::size_t size() const { return first_.size() - 1; }
    std::size_t total() const { return ids_.size(); }
    Ids operator[](std::size_t k) const { return {ids_.data() + first_[k], ids_.data() + first_[k + 1]}; }
    std::vector<std::int32_t> joined() && { return std::move(ids_); }

  private:
    std::vector<std::size_t> first_{0};
    std::vector<std::int32_t> ids_;
};

// 0, 1, .. below `count`.
inline std::vector<std::int32_t> all_ids(std::size_t count) {
    std::vector<std::int32_t> ids(count);
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
}

// The place of each id in a list that has each id once; from places, the list.
inline std::vector<std::int32_t> inverse(std::span<const std::int32_t> list) {
    std::vector<std::int32_t> places(list.size());
    for (std::size_t k = 0; k < list.size(); ++k) {
        places[at(list[k])] = static_cast<std::int32_t>(k);
    }
    return places;
}

// By id below `count`: whether it is among these.
inline std::vector<std::uint8_t> flags_of(std::size_t count, std::span<const std::int32_t> ids) {
    std::vector<std::uint8_t> flags(count, 0);
    for (const std::int32_t id : ids) {
        flags[at(id)] = 1;
    }
    return flags;
}

// Sorted, each value once.
inline void sort_unique(std::vector<std::int32_t>& list) {
    std::ranges::sort(list);
    list.erase(std::unique(list.begin(), list.end()), list.end());
}

} // namespace memsched
