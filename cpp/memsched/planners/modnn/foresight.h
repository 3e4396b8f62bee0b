// Line 16 of moDNN's Algorithm 1: whether a prefetch leaves room for the ops until its use.
#pragma once

#include "memsched/planners/modnn/facts.h"

namespace memsched {

class ModnnForesight {
  public:
    // Keeps a reference to facts.
    explicit ModnnForesight(const ModnnFacts& facts) : facts_(facts) {}

    // Whether ops i + 1 .. s find room once i has run with `layout`, which includes the tensor to prefetch. They use
    // their least workspaces and first fit; if nothing fits, windows of the fewest bytes are cleared.
    bool fits(OpId i, OpId s, ModnnLayout layout) const;

  private:
    bool prepare(OpId op, ModnnLayout& layout) const; // its inputs, outputs and workspace
    bool take(TensorId owner, Bytes bytes, const Flags& protects, ModnnLayout& layout) const;
    void finish(OpId op, ModnnLayout& layout) const;

    const ModnnFacts& facts_;
};

} // namespace memsched
