#include "memsched/planners/classes/class_search.h"

#include <algorithm>

namespace memsched {

ClassSearch::ClassSearch(const Graph& graph, const Device& device, Workers& workers, const Progress& progress)
    : capacity_(device.memory - graph.resident()), workers_(workers), progress_(progress),
      lists_(at(workers.threads())) {
    for (int worker = 0; worker < workers.threads(); ++worker) {
        plans_.push_back(std::make_unique<ClassBuilder>(graph));
        simulators_.emplace_back(graph, device, device.memory);
        plans_.back()->ask([this, worker] {
            if (worker == 0) {
                return stopped(fraction_);
            }
            workers_.wake(); // wakes the caller, which checks for interrupts
            return stopped_.load();
        });
    }
}

bool ClassSearch::stopped(double fraction) {
    fraction_ = std::max(fraction_, fraction);
    try {
        stopped_ = stopped_ || progress_.tick(fraction_);
    } catch (...) { // Ctrl-C: the other threads must end, too
        stopped_ = true;
        throw;
    }
    return stopped_;
}

Seconds ClassSearch::makespan(const std::vector<MapClass>& classes, const FetchRule& rule, Bytes more, int worker) {
    const auto id = at(worker);
    ++evaluations_;
    if (!plans_[id]->build(classes, capacity_ + more, rule, lists_[id])) {
        return Simulator::illegal;
    }
    simulators_[id].set_capacity(capacity_ + more);
    return simulators_[id].makespan(lists_[id]);
}

std::vector<Seconds> ClassSearch::makespans(const std::vector<ClassQuestion>& questions) {
    return makespans(questions.size(), [&](std::size_t k) { return questions[k]; });
}

std::vector<Seconds> ClassSearch::makespans(std::size_t number,
                                            const std::function<ClassQuestion(std::size_t)>& question) {
    std::vector<Seconds> found(number, Simulator::illegal);
    const std::size_t block = between_stops() * plans_.size(); // between blocks others are heard
    for (std::size_t begin = 0; begin < found.size() && !stopped(fraction_); begin += block) {
        const std::size_t count = std::min(block, found.size() - begin);
        workers_.each(
            static_cast<int>(count),
            [&](int k, int worker) {
                const ClassQuestion one = question(begin + at(k));
                found[begin + at(k)] = makespan(one.classes, {}, one.more, worker);
            },
            [this] { stopped(fraction_); });
    }
    return found;
}

StepList ClassSearch::steps(const std::vector<MapClass>& classes) {
    StepList list;
    plans_[0]->build(classes, capacity_, {}, list);
    return list;
}

ClassSolution ClassSearch::with_best_rule(std::vector<MapClass> classes) {
    ClassSolution best{std::move(classes), {}, 0};
    best.makespan = makespan(best.classes);
    for (const FetchRule& rule : {FetchRule{FetchRule::Kind::layers}, FetchRule{FetchRule::Kind::demand}}) {
        if (best.makespan < Simulator::illegal && stopped(fraction_)) {
            break;
        }
        const Seconds found = makespan(best.classes, rule);
        if (clearly_less(found, best.makespan)) {
            best.rule = rule;
            best.makespan = found;
        }
    }
    return best;
}

} // namespace memsched
