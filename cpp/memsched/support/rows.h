// Lists of different lengths, one after the other in memory.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace memsched {

template <class Item> class Rows {
  public:
    std::size_t size() const { return begins_.size(); }
    std::span<const Item> operator[](std::size_t row) const {
        const std::size_t end = row + 1 < begins_.size() ? begins_[row + 1] : items_.size();
        return {items_.data() + begins_[row], end - begins_[row]};
    }
    std::span<const Item> back() const { return (*this)[size() - 1]; }

    void add_row() { begins_.push_back(items_.size()); }
    void push_back(const Item& item) { items_.push_back(item); } // in the last row
    void clear() {
        begins_.clear();
        items_.clear();
    }

  private:
    std::vector<std::size_t> begins_;
    std::vector<Item> items_;
};

} // namespace memsched
