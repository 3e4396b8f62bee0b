// What the search of selective decides, and the changes that it tries.
#pragma once

#include "memsched/build/gap_builder.h"

#include <map>
#include <random>
#include <utility>
#include <vector>

namespace memsched {

using Classes = std::vector<MapClass>; // by gap

constexpr double most_slack = 0.5;

struct Decisions {
    Classes classes;
    std::vector<float> weights; // see GapBuilder
    Eviction eviction;
    double slack = 0; // the share of the memory that the list does without: its fetches find room, and start earlier
    std::vector<std::uint8_t> hosted; // by op, whether it runs on the host; empty: none does
};

class Changes {
  public:
    // Of these gaps of the graph; without a link only of tensors that can run again. Keeps references to both.
    Changes(const Graph& graph, const std::vector<Gap>& gaps, bool linked);

    std::size_t count() const { return open_.size(); } // of the gaps whose classes may change
    bool any() const { return !open_.empty() || !hosts_.empty(); }

    // Prices: of all tensors a little, or of a few much more or less; or the classes of one or two gaps. Large tensors
    // more often than small ones. Of whole steps with a link, also the classes of gaps in a row, the slack, or where
    // ops run that may run on the host.
    void change(Decisions& what, std::mt19937_64& random) const;

  private:
    using Kind = std::pair<Bytes, std::size_t>;

    Kind kind_of(std::size_t gap) const;
    std::size_t pick(std::mt19937_64& random) const;
    MapClass other(std::size_t gap, MapClass now, std::mt19937_64& random) const;
    void change_alike(Decisions& what, std::mt19937_64& random) const;
    void change_hosted(Decisions& what, std::mt19937_64& random) const;

    const Graph& graph_;
    const std::vector<Gap>& gaps_;
    bool linked_;
    std::vector<std::vector<OpId>> hosts_; // with a link, ops that may run on the host, those together that go together
    std::vector<std::size_t> open_;
    std::vector<double> sums_;                       // of their bytes
    std::map<Kind, std::vector<std::size_t>> alike_; // of whole steps: open gaps by bytes and place, as of layers
};

} // namespace memsched
