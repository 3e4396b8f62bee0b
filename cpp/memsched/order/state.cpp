#include "memsched/order/state.h"

namespace memsched::order {

State::State(const Problem& problem) : problem_(problem), memory_(problem.base), place_(problem.ops(), -1) {
    for (std::size_t e = 0; e < problem.bytes.size(); ++e) {
        met_.push_back(problem.from_start[e]);
        ends_.push_back(static_cast<std::int32_t>(problem.members[e].size()) + problem.from_start[e] +
                        problem.to_end[e]);
        memory_ += problem.from_start[e] ? problem.bytes[e] : 0;
    }
    for (std::size_t v = 0; v < problem.ops(); ++v) {
        waiting_.push_back(static_cast<std::int32_t>(problem.before[v].size()));
        if (waiting_[v] == 0) {
            add_ready(static_cast<OpId>(v));
        }
    }
}

Bytes State::needs(OpId op) const {
    Bytes bytes = memory_ + problem_.scratch[at(op)];
    for (const NetId e : problem_.nets[at(op)]) {
        bytes += met_[at(e)] == 0 ? problem_.bytes[at(e)] : 0;
    }
    return bytes;
}

Bytes State::change(OpId op) const {
    Bytes bytes = 0;
    for (const NetId e : problem_.nets[at(op)]) {
        bytes += met_[at(e)] == 0                  ? problem_.bytes[at(e)]
                 : met_[at(e)] + 1 == ends_[at(e)] ? -problem_.bytes[at(e)]
                                                   : 0;
    }
    return bytes;
}

void State::run(OpId op) {
    for (const NetId e : problem_.nets[at(op)]) {
        memory_ += met_[at(e)] == 0 ? problem_.bytes[at(e)] : 0;
        ++met_[at(e)];
        memory_ -= met_[at(e)] == ends_[at(e)] ? problem_.bytes[at(e)] : 0;
    }
    remove_ready(op);
    order_.push_back(op);
    for (const OpId next : problem_.after[at(op)]) {
        if (--waiting_[at(next)] == 0) {
            add_ready(next);
        }
    }
}

void State::undo() {
    const OpId op = order_.back();
    order_.pop_back();
    for (const OpId next : problem_.after[at(op)]) {
        if (waiting_[at(next)]++ == 0) {
            remove_ready(next);
        }
    }
    add_ready(op);
    for (const NetId e : problem_.nets[at(op)]) {
        memory_ += met_[at(e)] == ends_[at(e)] ? problem_.bytes[at(e)] : 0;
        --met_[at(e)];
        memory_ -= met_[at(e)] == 0 ? problem_.bytes[at(e)] : 0;
    }
}

void State::add_ready(OpId op) {
    place_[at(op)] = static_cast<std::int32_t>(ready_.size());
    ready_.push_back(op);
}

void State::remove_ready(OpId op) {
    const OpId last = ready_.back();
    ready_[at(place_[at(op)])] = last;
    place_[at(last)] = place_[at(op)];
    place_[at(op)] = -1;
    ready_.pop_back();
}

} // namespace memsched::order
