// The simulator: times a list of steps on a graph and a device, in one pass, and refuses lists that cannot run.
//
// Memory is decided by list order, time by four first-in-first-out streams (compute, device to host, host to device;
// these two are one when the link is not duplex; and the host). docs/schedule.md has the rules E1 .. E12 that the
// source names.
//
// On a graph with persistent tensors the list is repeated without end. It is played once here, which tells whether it
// can run; the times are those of the steady state (steady.h).
#pragma once

#include "memsched/model/device.h"
#include "memsched/simulate/address_ranges.h"
#include "memsched/simulate/awaited_bytes.h"
#include "memsched/simulate/timeline.h"
#include "memsched/support/progress.h"

#include <limits>
#include <map>
#include <vector>

namespace memsched {

// Reusable workspace for many simulations on one graph and device; one object per thread.
class Simulator {
  public:
    static constexpr Seconds illegal = std::numeric_limits<Seconds>::infinity();

    // budget: bytes, resident included; the smaller of it and device.memory is enforced. Keeps a reference to graph.
    Simulator(const Graph& graph, const Device& device, Bytes budget);

    // Turns to another device and budget.
    void aim(const Device& device, Bytes budget);

    // Sets the capacity to enforce: bytes, without resident.
    void set_capacity(Bytes capacity) { capacity_ = capacity; }

    // The makespan, or `illegal` if the list cannot run. Of a list that is repeated, the period, which takes the
    // longest; throws Stopped when told to stop.
    Seconds makespan(const StepList& list, const Progress& progress = {});

    // The end of each step of the last list that ran; not of one that is repeated.
    const std::vector<Seconds>& ends() const { return ends_; }

    // The full timeline. Throws ScheduleError, naming the step, if the list cannot run.
    Timeline timeline(const StepList& list, const Progress& progress = {});

    // Its sums alone. Throws as timeline() does.
    Totals totals(const StepList& list);

  private:
    template <class Observer> bool play(const StepList& list, Observer& observer);
    template <class Writer> void write(const StepList& list, Writer& writer, const Progress& progress); // or throws
    template <class Observer> bool play_run(const Step& step, Observer& observer);
    template <class Observer> bool play_transfer(const Step& step, Observer& observer);
    template <class Observer> bool play_free(const Step& step, Observer& observer);
    template <class Observer> bool play_update(const Step& step, Observer& observer);
    bool await_reads(const Op& op, Seconds& start); // E2: moves start to when the reads are ready
    bool count_outputs(const Step& step, const Op& op, Bytes& outputs);
    // E7, in bytes: moves start to when the bytes are available.
    bool reserve(Bytes bytes, Seconds& start);
    void give_back(Seconds done, Bytes bytes);
    // E7, in address ranges, for contiguous lists.
    bool place(const Step& step, Seconds& start);
    bool take(TensorId tensor, Bytes bytes, Bytes low, Seconds& start);
    void reset(const StepList& list);
    // border.cpp, for persistent tensors: where they are at the start of a list.
    void start_at_border(const StepList& list);
    bool begins();                                // whether what is there then fits
    bool updates_in_order(OpId id);               // whether the op reads the versions that it is to read
    bool update_on_host(OpId id, Seconds& start); // E12; start: of the stream, moved to when all that it reads is there
    bool ends_as_it_began();
    template <class Message> bool fail(const Message& message) { // always false; message() makes the sentence
        if (explain_) {
            fault_ = message();
        }
        return false;
    }

    const Graph& graph_;
    Device device_;
    const StepList* list_ = nullptr; // the list being played
    Bytes capacity_;                 // without resident
    Bytes sources_ = 0;              // bytes of all sources
    Bytes at_start_ = 0;             // and of those that are on the device when the list begins

    struct TensorState {
        Seconds ready = 0;        // the device copy is complete
        Seconds touch = 0;        // the last use of the device copy ends
        Seconds host = -1;        // the host copy is complete; < 0: there is none, or it is stale
        Bytes low = 0;            // contiguous: its address
        std::int32_t version = 0; // persistent: how often it was updated
        bool on_device = false;
        bool kept = false; // it has bytes on the host
    };
    std::vector<TensorState> tensors_;
    std::vector<std::uint8_t> ran_;
    std::vector<Seconds> ends_;
    AwaitedBytes awaited_; // bytes released when transfers end,
    Bytes run_bytes_ = 0;  // and when the last run ends
    AddressRanges ranges_; // contiguous: in place of both
    Bytes live_ = 0;       // by list order
    Bytes host_bytes_ = 0;
    Seconds stream_free_[4] = {0, 0, 0, 0}; // compute, device to host (or the only link), host to device, host
    Seconds issue_ = 0;                     // E1: the start of the nearest run so far
    Seconds earliest_ = 0;                  // of the current step: E1 and its `after`
    StepId current_ = 0;
    TotalsWriter sums_;
    bool explain_ = false; // messages cost time, and searches do not read them
    std::string fault_;
};

// Throws ScheduleError when the plan cannot run on the device.
Timeline simulate(const Graph& graph, const StepList& list, const Device& device, Bytes budget,
                  const Progress& progress = {});
Timeline simulate(const Graph& graph, const Schedule& schedule, const Device& device, const Progress& progress = {});

// Refuses several rounds on a graph with persistent tensors.
void check_repeated(const Graph& graph, const Schedule& schedule);

// A plan for a family: the list runs on the graph of each round's batch. Times and bytes moved are sums over all
// rounds, the peak is the largest. Steps and the memory over time are those of the first round, and blocks are left
// out. Also throws ScheduleError if the rounds do not add up to the full batch.
Timeline simulate_rounds(const std::map<std::int64_t, const Graph*>& graphs, std::int64_t full,
                         const Schedule& schedule, const Device& device, const Progress& progress = {});

} // namespace memsched
