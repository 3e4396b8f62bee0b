#include "memsched/planners/remat/merged_chain.h"

#include "memsched/support/id_lists.h"

#include <algorithm>

namespace memsched {
namespace {

// Cuts the stages, all layers but the loss, about where their share of bytes and of number, taken together, is even.
std::vector<int> group_ends(const RematChain& chain, int most) {
    const int stages = chain.layers - 1, groups = most - 1;
    double bytes = 1;
    for (const Bytes saved : chain.saved) {
        bytes += static_cast<double>(saved);
    }
    std::vector<int> ends{0};
    int k = 0;
    double share = 0; // of the stages up to k
    for (int group = 1; group < groups; ++group) {
        const int latest = stages - (groups - group); // a stage is left for each group to come
        int best = 0;
        for (; k < latest; ++k) {
            const double next = share + 0.5 * static_cast<double>(chain.saved[at(k + 1)]) / bytes + 0.5 / stages;
            if (best > 0 && next * groups > group + 0.25) {
                break;
            }
            if (best == 0 || share * groups < group - 0.25 ||
                chain.activation[at(k + 1)] < chain.activation[at(best)]) {
                best = k + 1;
            }
            share = next;
        }
        ends.push_back(best);
    }
    ends.push_back(stages);
    ends.push_back(chain.layers);
    return ends;
}

// Columns of the layers first .. last as one, put behind those of `to`.
void append_group(const RematChain& from, int first, int last, RematChain& to) {
    Bytes saved = 0, saving = 0, backward = 0, transient = from.need_first(first);
    Seconds forward_time = 0, backward_time = 0;
    for (int k = first; k <= last; ++k) {
        const auto l = at(k);
        saved += from.saved[l];
        saving = std::max(saving, saved + from.saving_scratch[l]);
        backward = std::max(backward, saved + from.gradient[l] + from.gradient[l - 1] + from.backward_scratch[l]);
        transient = k == first ? transient : std::max(transient, from.need_next(k));
        forward_time += from.forward[l];
        backward_time += from.backward[l];
    }
    const auto end = at(last);
    to.forward.push_back(forward_time);
    to.backward.push_back(backward_time);
    to.activation.push_back(from.activation[end]);
    to.saved.push_back(saved);
    to.gradient.push_back(from.gradient[end]);
    to.saving_scratch.push_back(saving - saved);
    to.transient_scratch.push_back(transient - from.activation[end]);
    to.backward_scratch.push_back(
        std::max<Bytes>(0, backward - saved - from.gradient[end] - from.gradient[at(first - 1)]));
}

RematChain merged(const RematChain& source, const std::vector<int>& ends) {
    RematChain to = source;
    to.layers = static_cast<int>(ends.size()) - 1;
    for (auto* column :
         {&to.activation, &to.saved, &to.gradient, &to.saving_scratch, &to.transient_scratch, &to.backward_scratch}) {
        column->resize(1);
    }
    to.forward.resize(1);
    to.backward.resize(1);
    for (std::size_t group = 1; group < ends.size(); ++group) {
        append_group(source, ends[group - 1] + 1, ends[group], to);
    }
    to.forward_until = to.step_until = {0};
    for (const int end : ends) {
        if (end > 0) {
            to.forward_until.push_back(source.forward_until[at(end)]);
            to.step_until.push_back(source.step_until[at(end)]);
        }
    }
    return to;
}

std::vector<int> ends_of(const RematChain& source, int most) {
    if (source.layers > most) {
        return group_ends(source, most);
    }
    return all_ids(at(source.layers) + 1);
}

} // namespace

MergedChain::MergedChain(const RematChain& source, int most)
    : ends(ends_of(source, most)), chain(source.layers > most ? merged(source, ends) : source) {}

std::vector<RematOp> MergedChain::layers(const std::vector<RematOp>& sequence) const {
    std::vector<RematOp> found;
    for (const RematOp& op : sequence) {
        const int first = ends[at(op.layer - 1)] + 1, last = ends[at(op.layer)];
        for (int k = first; k <= last; ++k) {
            found.push_back({op.forward ? k : first + last - k, op.forward, op.saves});
        }
    }
    return found;
}

} // namespace memsched
