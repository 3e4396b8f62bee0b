#include "memsched/model/chain.h"

#include <cmath>
#include <stdexcept>

namespace memsched {
namespace {

std::string entry(const char* field, std::size_t index) {
    return std::string(field) + "[" + std::to_string(index) + "]";
}

void check_length(const char* field, std::size_t length, std::size_t expected) {
    if (length != expected) {
        throw std::invalid_argument(std::string(field) + " has " + std::to_string(length) + " entries, expected " +
                                    std::to_string(expected) +
                                    " (n stages have n + 1 activations and gradients and n of everything else)");
    }
}

void check_times(const char* field, const std::vector<Seconds>& times, Seconds& total) {
    for (std::size_t k = 0; k < times.size(); ++k) {
        if (!std::isfinite(times[k]) || times[k] < 0) {
            throw std::invalid_argument(entry(field, k) + " is " + show(times[k]) +
                                        "; a time must be a finite number of seconds >= 0");
        }
        total += times[k];
        if (total > most_seconds) {
            throw std::invalid_argument(entry(field, k) + " is " + show(times[k]) +
                                        ", with which the times add up to over " + show(most_seconds) +
                                        "; use a coarser unit");
        }
    }
}

void check_bytes(const char* field, const std::vector<Bytes>& column, Bytes& total) {
    for (std::size_t k = 0; k < column.size(); ++k) {
        check_size(column[k], [&] { return entry(field, k); });
        total = checked_add(total, column[k], [&] { return entry(field, k) + " and the other sizes of the chain"; });
    }
}

void fill_defaults(ChainColumns& c, const ChainGiven& given, std::size_t n) {
    if (!given.saved) {
        c.saved.assign(c.activation.begin() + 1, c.activation.end());
    }
    if (!given.forward_overhead) {
        c.forward_overhead.assign(n, 0);
    }
    if (!given.backward_overhead) {
        c.backward_overhead.assign(n, 0);
    }
    if (!given.names) {
        c.names.clear();
        for (std::size_t k = 1; k <= n; ++k) {
            c.names.push_back("stage " + std::to_string(k));
        }
    }
}

void check_pieces(const ChainColumns& c) {
    for (std::size_t k = 0; k < c.pieces.size(); ++k) {
        Bytes sum = 0;
        for (std::size_t s = 0; s < c.pieces[k].size(); ++s) {
            check_size(c.pieces[k][s], [&] { return entry("pieces", k) + "[" + std::to_string(s) + "]"; });
            sum = checked_add(sum, c.pieces[k][s], [&] { return entry("pieces", k); });
        }
        const Bytes tape = c.saved[k] - c.activation[k + 1];
        if (sum != tape) {
            throw std::invalid_argument(entry("pieces", k) + " adds up to " + std::to_string(sum) +
                                        " bytes, but saved - activation of that stage is " + std::to_string(tape));
        }
    }
}

} // namespace

Chain::Chain(ChainColumns columns, const ChainGiven& given) : columns_(std::move(columns)) {
    ChainColumns& c = columns_;
    const std::size_t n = c.forward_time.size();
    if (n == 0) {
        throw std::invalid_argument("forward_time is empty; a chain has at least one stage");
    }
    check_length("backward_time", c.backward_time.size(), n);
    check_length("activation", c.activation.size(), n + 1);
    check_length("gradient", c.gradient.size(), n + 1);
    fill_defaults(c, given, n);
    check_length("saved", c.saved.size(), n);
    check_length("forward_overhead", c.forward_overhead.size(), n);
    check_length("backward_overhead", c.backward_overhead.size(), n);
    check_length("names", c.names.size(), n);
    Seconds compute = 0;
    check_times("forward_time", c.forward_time, compute);
    check_times("backward_time", c.backward_time, compute);
    check_size(c.resident, [] { return "resident"; });
    Bytes total = c.resident;
    check_bytes("activation", c.activation, total);
    check_bytes("gradient", c.gradient, total);
    check_bytes("saved", c.saved, total);
    for (std::size_t k = 0; k < n; ++k) {
        if (c.saved[k] < c.activation[k + 1]) {
            throw std::invalid_argument(entry("saved", k) + " is " + std::to_string(c.saved[k]) +
                                        ", less than the stage's output activation[" + std::to_string(k + 1) +
                                        "] = " + std::to_string(c.activation[k + 1]) + ", which it includes");
        }
    }
    check_bytes("forward_overhead", c.forward_overhead, total);
    check_bytes("backward_overhead", c.backward_overhead, total);
    if (!given.transient_overhead) {
        c.transient_overhead.resize(n);
        for (std::size_t k = 0; k < n; ++k) {
            c.transient_overhead[k] = c.saved[k] - c.activation[k + 1] + c.forward_overhead[k];
        }
    }
    check_length("transient_overhead", c.transient_overhead.size(), n);
    check_bytes("transient_overhead", c.transient_overhead, total);
    if (given.pieces) {
        check_length("pieces", c.pieces.size(), n);
        check_pieces(c);
    }
}

} // namespace memsched
