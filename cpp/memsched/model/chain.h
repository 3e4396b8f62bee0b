// Chain: a sequential model as columns. Immutable and checked on construction.
#pragma once

#include "memsched/support/units.h"

#include <string>
#include <vector>

namespace memsched {

// The columns of a chain of n stages. Times in seconds [n]; bytes [n + 1] for activation (a^0 .. a^n) and gradient
// (d^0 .. d^n), [n] for the others. Columns left out get the defaults of Chain's constructor.
struct ChainColumns {
    std::vector<Seconds> forward_time;
    std::vector<Seconds> backward_time;
    std::vector<Bytes> activation;
    std::vector<Bytes> gradient;
    std::vector<Bytes> saved;               // what F_k leaves for B_k, including its output; default activation[1:]
    std::vector<Bytes> forward_overhead;    // workspace of a forward that saves; default 0
    std::vector<Bytes> transient_overhead;  // workspace of a forward that saves nothing; default saved - activation[1:]
                                            // + forward_overhead
    std::vector<Bytes> backward_overhead;   // workspace of the backward; default 0
    std::vector<std::string> names;         // default "stage 1" ..
    std::vector<std::vector<Bytes>> pieces; // per stage, the storages of saved - activation; empty: unknown
    Bytes resident = 0;                     // bytes that never move and count against the memory
    std::string name = "chain";
    std::string provenance; // JSON text: where the figures come from; "" for none

    bool operator==(const ChainColumns&) const = default;
};

// Which optional columns were given (an empty vector of a chain with n >= 1 stages is never valid input).
struct ChainGiven {
    bool saved = false, forward_overhead = false, transient_overhead = false, backward_overhead = false;
    bool names = false, pieces = false;
};

// Invariants: n >= 1; all values finite and >= 0; saved >= activation[1:]; pieces add up to saved - activation[1:];
// the sum of all bytes fits in int64. Throws std::invalid_argument naming field, index and value.
class Chain {
  public:
    Chain(ChainColumns columns, const ChainGiven& given);

    int n() const { return static_cast<int>(columns_.forward_time.size()); }
    const ChainColumns& columns() const { return columns_; }

    bool operator==(const Chain&) const = default;

  private:
    ChainColumns columns_;
};

} // namespace memsched
