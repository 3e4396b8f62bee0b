// Shared by all searches over classes: build a plan, and simulate it.
#pragma once

#include "memsched/build/class_builder.h"
#include "memsched/simulate/simulate.h"
#include "memsched/support/parallel.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace memsched {

// Classes of all maps, the rule for their fetches, and the simulated makespan.
struct ClassSolution {
    std::vector<MapClass> classes;
    FetchRule rule;
    Seconds makespan = 0;
};

// Whether a is less than b by more than rounding.
inline bool clearly_less(Seconds a, Seconds b) { return a < b * (1 - 1e-12); }

// One assignment of classes, and the bytes that it may use beyond the memory.
struct ClassQuestion {
    std::vector<MapClass> classes;
    Bytes more = 0;
};

class ClassSearch {
  public:
    // Keeps references to graph, workers and progress.
    ClassSearch(const Graph& graph, const Device& device, Workers& workers, const Progress& progress);

    const std::vector<TensorId>& maps() const { return plans_[0]->maps(); }

    // The makespan; Simulator::illegal if there is no plan.
    Seconds makespan(const std::vector<MapClass>& classes, const FetchRule& rule = {}, Bytes more = 0, int worker = 0);
    // Makespans of all questions, with eager fetches; Simulator::illegal for those not reached when told to stop.
    std::vector<Seconds> makespans(const std::vector<ClassQuestion>& questions);
    // The same for `count` questions made one by one, since all at once may not fit into memory.
    std::vector<Seconds> makespans(std::size_t number, const std::function<ClassQuestion(std::size_t)>& question);
    // The number of plans between two checks of the clock, a few milliseconds.
    std::size_t between_stops() const { return maps().size() < 1000 ? 8 : 1; }
    // Whether the search was told to stop; `fraction` of it is done.
    bool stopped(double fraction);
    // The steps, with eager fetches, of a plan for which `makespan` is finite.
    StepList steps(const std::vector<MapClass>& classes);
    // The best of eager fetches, fetches one layer ahead and fetches on demand; Simulator::illegal if none fits. Eager
    // ones are usually the best, but fetches that are listed early hold their memory against later runs. When told to
    // stop, the first of them that fits.
    ClassSolution with_best_rule(std::vector<MapClass> classes);
    std::int64_t evaluations() const { return evaluations_; }

  private:
    Bytes capacity_;
    Workers& workers_;
    const Progress& progress_;
    double fraction_ = 0;
    std::atomic<bool> stopped_ = false;
    std::vector<std::unique_ptr<ClassBuilder>> plans_; // by worker, as the next two
    std::vector<Simulator> simulators_;
    std::vector<StepList> lists_;
    std::atomic<std::int64_t> evaluations_ = 0;
};

} // namespace memsched
