#include "memsched/bounds/instants.h"

#include <algorithm>
#include <bit>

namespace memsched {
namespace {

constexpr std::int64_t steps_a_flip = 32, steps_a_bit = 2;

template <class Each> void each_bit(std::uint64_t word, const Each& each) {
    for (; word != 0; word &= word - 1) {
        each(static_cast<std::size_t>(std::countr_zero(word)));
    }
}

} // namespace

Instants::Instants(const Graph& graph)
    : graph_(graph), readers_(readers_of(graph)), before_(graph.ops().size()), after_(before_.size()),
      self_(before_.size()), beside_(graph.tensors().size()), again_(before_.size()), piece_(before_.size()),
      pieces_(before_.size()) {
    std::vector<std::vector<OpId>> writers;
    for (const Op& op : graph.ops()) {
        time_.push_back(fastest(op).time);
        total_ += time_.back();
        std::vector<OpId>& own = writers.emplace_back();
        for (const TensorId t : op.reads) {
            if (graph.writer(t) >= 0) {
                own.push_back(graph.writer(t));
            }
        }
        sort_unique(own);
    }
    writers_ = IdLists(writers);
}

std::size_t Instants::scan(const std::vector<std::size_t>& ops, std::int64_t most_steps, Pace& pace) {
    std::ranges::fill(beside_, std::uint8_t{0});
    std::ranges::fill(again_, 0.0);
    std::ranges::fill(piece_, none);
    pieces_.assign(pieces_.size(), {});
    found_.clear();
    runs_.clear();
    changes_.clear();
    bytes_ = 0;
    std::size_t done = 0;
    for (std::int64_t steps = 0; done < ops.size() && steps < most_steps;) {
        const std::size_t count = std::min(most, ops.size() - done);
        const std::int64_t taken = group(ops, done, count);
        pace.spend(taken);
        steps += taken;
        done += count;
    }
    return done;
}

// Returns the work done, in steps.
std::int64_t Instants::group(const std::vector<std::size_t>& ops, std::size_t first, std::size_t count) {
    for (std::size_t k = 0; k < count; ++k) {
        self_[ops[first + k]] = Word{1} << k;
        found_.push_back({ops[first + k], 0, 0, 0, 0});
    }
    relate(ops[first], ops[first + count - 1]);
    std::int64_t steps = sum_times(&found_[first], count) + find_flips(count);
    for (std::size_t k = 0; k < count; ++k) {
        self_[ops[first + k]] = 0;
        steps += flip(flips_[k]);
        flips_[k].clear();
        found_[first + k].beside = bytes_;
        found_[first + k].changes = changes_.size();
    }
    return steps + static_cast<std::int64_t>(2 * writers_.total() + readers_.total() + beside_.size());
}

// The listed order is topological, so one scan in each direction suffices. The instants are from op first to last.
void Instants::relate(std::size_t first, std::size_t last) {
    std::ranges::fill(before_, Word{0});
    std::ranges::fill(after_, Word{0});
    for (std::size_t q = last + 1; q-- > 0;) {
        if (const Word later = before_[q] | self_[q]; later != 0) {
            for (const OpId writer : writers_[q]) {
                before_[at(writer)] |= later;
            }
        }
    }
    for (std::size_t q = first + 1; q < after_.size(); ++q) {
        for (const OpId writer : writers_[q]) {
            after_[q] |= after_[at(writer)] | self_[at(writer)];
        }
    }
}

std::int64_t Instants::sum_times(Instant* found, std::size_t count) const {
    const Word all = ~Word{0} >> (most - count);
    Seconds before = 0, after = 0; // of ops that are before (after) at all instants
    std::int64_t steps = 0;
    for (std::size_t q = 0; q < time_.size(); ++q) {
        const auto add = [&](Word word, Seconds Instant::* sum, Seconds& at_all) {
            if (word == all) {
                at_all += time_[q];
            } else {
                each_bit(word, [&](std::size_t k) { found[k].*sum += time_[q]; });
                steps += steps_a_bit * std::popcount(word);
            }
        };
        add(before_[q], &Instant::before, before);
        add(after_[q] | self_[q], &Instant::after, after);
        steps += 2;
    }
    for (std::size_t k = 0; k < count; ++k) {
        found[k].before += before;
        found[k].after += after;
    }
    return steps;
}

// A tensor is beside p if p does not touch it, but ops before p have written it and ops after p read it.
std::int64_t Instants::find_flips(std::size_t count) {
    const Word all = ~Word{0} >> (most - count);
    std::int64_t flips = 0;
    for (std::size_t t = 0; t < beside_.size(); ++t) {
        Word later = 0, touched = 0;
        for (const OpId q : readers_[t]) {
            later |= after_[at(q)];
            touched |= self_[at(q)];
        }
        const OpId writer = graph_.writer(static_cast<TensorId>(t));
        const Word written = writer < 0 ? all : before_[at(writer)];
        const Word beside = written & later & ~touched;
        each_bit((beside ^ (beside << 1 | beside_[t])) & all, [&](std::size_t k) {
            flips_[k].push_back(static_cast<std::uint32_t>(t));
            ++flips;
        });
    }
    return flips * steps_a_flip;
}

// Adds tensors that are not beside and removes those that are; returns the work done, in steps.
std::int64_t Instants::flip(const std::vector<std::uint32_t>& tensors) {
    touched_.clear();
    for (const std::uint32_t t : tensors) {
        beside_[t] ^= 1;
        const auto size = static_cast<double>(graph_.tensors()[t].bytes), bytes = beside_[t] != 0 ? size : -size;
        bytes_ += bytes;
        const OpId writer = graph_.writer(static_cast<TensorId>(t));
        if (writer >= 0 && !graph_.op(writer).once) {
            again_[at(writer)] += bytes;
            touched_.push_back(at(writer));
        }
    }
    std::int64_t steps = 0;
    for (const std::size_t op : touched_) {
        const std::size_t piece = piece_of(op, again_[op]);
        steps += static_cast<std::int64_t>(pieces_[op].size());
        if (piece == piece_[op]) {
            continue;
        }
        if (piece_[op] != none) {
            changes_.push_back({piece_[op], false});
        }
        if (piece != none) {
            changes_.push_back({piece, true});
        }
        piece_[op] = piece;
    }
    return steps;
}

// The piece in which the op brings back this many bytes.
std::size_t Instants::piece_of(std::size_t op, double bytes) {
    if (bytes == 0) {
        return none;
    }
    for (const std::size_t piece : pieces_[op]) {
        if (runs_[piece].bytes == bytes) {
            return piece;
        }
    }
    pieces_[op].push_back(runs_.size());
    runs_.push_back({time_[op], bytes});
    return pieces_[op].back();
}

} // namespace memsched
