// Line 16 of moDNN's Algorithm 1: whether a prefetch leaves room for the ops until its use.
#pragma once

#include "memsched/planners/modnn/facts.h"

namespace memsched {

class ModnnForesight {
  public:
    // Keeps a reference to facts.
    explicit ModnnForesight(const ModnnFacts& facts) : facts_(facts) {}

    // Whether the ops behind i up to s find room once i has run with `layout`, which holds what is to be prefetched.
    // They take their least workspaces, first fits, and where nothing fits the windows of fewest bytes.
    bool fits(OpId i, OpId s, ModnnLayout layout) const;

  private:
    bool prepare(OpId op, ModnnLayout& layout) const; // its inputs, outputs and workspace
    bool take(TensorId owner, Bytes bytes, const Flags& protects, ModnnLayout& layout) const;
    void finish(OpId op, ModnnLayout& layout) const;

    const ModnnFacts& facts_;
};

} // namespace memsched
