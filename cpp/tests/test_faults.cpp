// Memory that runs out at any moment, and threads that cannot start: an exception or less speed, and the next call is
// as ever. The tests replace the global operator new and pthread_create for this; the core knows nothing of it.
#include "instances.h"
#include "memsched/bounds/bounds.h"
#include "memsched/bounds/recompute_bound.h"
#include "memsched/order/order.h"
#include "memsched/placement/placement.h"
#include "memsched/planners/classes/baselines.h"
#include "memsched/planners/classes/pooch.h"
#include "memsched/planners/classes/vdnn_sync.h"
#include "memsched/planners/modnn/modnn.h"
#include "memsched/planners/offload/dynprog.h"
#include "memsched/planners/offload/offload.h"
#include "memsched/planners/remat/least_memory.h"
#include "memsched/planners/remat/pofo.h"
#include "memsched/simulate/simulate.h"
#include "memsched/support/parallel.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <dlfcn.h>
#include <functional>
#include <memory>
#include <new>
#include <pthread.h>
#include <stdexcept>
#include <system_error>

namespace {

std::atomic<std::int64_t> allocations_left{-1}; // < 0: no limit
std::atomic<int> threads_left{-1};

bool spend(std::atomic<std::int64_t>& left) { return left.load() < 0 || left.fetch_sub(1) > 0; }

} // namespace

// The n-th allocation fails, and all after it until the limit is lifted. Not inlined: GCC would see one half of a pair
// of new and delete beside free and malloc, and warn.
[[gnu::noinline]] void* operator new(std::size_t size) {
    if (allocations_left.load() >= 0 && !spend(allocations_left)) {
        allocations_left = 0;
        throw std::bad_alloc();
    }
    if (void* found = std::malloc(size > 0 ? size : 1)) {
        return found;
    }
    throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
    try {
        return operator new(size);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
[[gnu::noinline]] void operator delete(void* pointer) noexcept { std::free(pointer); }
[[gnu::noinline]] void operator delete(void* pointer, std::size_t) noexcept { std::free(pointer); }

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                              void* argument) noexcept {
    using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
    static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
    if (threads_left.load() >= 0 && threads_left.fetch_sub(1) <= 0) {
        threads_left = 0;
        return EAGAIN;
    }
    return create(thread, attributes, start, argument);
}

using namespace memsched;
using namespace memsched::testing;

namespace {

struct Case {
    const char* name;
    std::function<double()> work; // a number that the same input gives again
};

// One small problem for all that the core does.
std::vector<Case> cases() {
    Dice dice(7);
    const Chain source = random_chain(dice, 6);
    const auto chain = std::make_shared<const RematChain>(source);
    const auto graph = std::make_shared<const Graph>(to_graph(source));
    const Bytes least = min_memory(*graph), peak = peak_memory(*graph), middle = (least + peak) / 2;
    const Device device = device_of(middle, 1);
    const Device plenty = device_of(2 * peak, 1);
    const FluidChain fluid = random_fluid_chain(dice, 10);
    const std::vector<placement::Buffer> buffers{{0, 4, 8},  {1, 3, 4}, {2, 6, 6}, {3, 5, 2},
                                                 {4, 9, 12}, {5, 7, 3}, {6, 9, 5}};
    return {
        {"to_graph", [source] { return static_cast<double>(to_graph(source).ops().size()); }},
        {"bounds", [graph, device] { return GraphBounds(*graph).on(device, device.memory).fractional; }},
        {"recompute_bound", [graph, device] { return recompute_bound(*graph, device, device.memory, {}); }},
        {"least memory",
         [chain] {
             const LeastMemory found(*chain, {});
             return static_cast<double>(found.rotor() + found.pofo()) +
                    static_cast<double>(found.rotor_sequence(found.rotor()).size());
         }},
        {"rotor and pofo",
         [chain] {
             Workers workers(3);
             const Bytes capacity = LeastMemory(*chain, {}).pofo() + 8;
             const SegmentTable table(*chain, capacity, 40, workers, {});
             const auto alone = rotor(table, capacity);
             const auto found = pofo(table, {capacity, 1.5, 2.0, {}, true, 7}, workers, {});
             return (alone ? alone->time : 0) + (found ? found->time : 0);
         }},
        {"offload",
         [graph, device] {
             const SetBuilder builder(*graph);
             std::vector<std::uint8_t> travels(graph->tensors().size(), 0);
             for (const TensorId t : builder.movable()) {
                 travels[static_cast<std::size_t>(t)] = 1;
             }
             const Progress stop{[seen = 0](double) mutable { return ++seen > 40; }};
             const auto found = offload_search(*graph, device, device.memory, travels, {}, stop);
             return simulate(*graph, found.steps, device, device.memory).makespan;
         }},
        {"dynprog", [fluid] { return dynprog(fluid, {}, {}).makespan; }},
        {"dynprog by hash", [fluid] { return dynprog_hash(fluid, {}, {}).makespan; }},
        {"pooch",
         [graph, plenty] {
             Workers workers(3);
             const auto found = pooch(*graph, plenty, true, {4, 2, true}, workers, {});
             return found ? found->best.makespan : 0;
         }},
        {"by_kind", [graph, plenty] { return by_kind(*graph, plenty, {}).makespan; }},
        {"swap_all", [graph, plenty] { return swap_all(*graph, plenty, true).makespan; }},
        {"vdnn_sync", [graph, plenty] { return vdnn_sync(*graph, plenty).makespan; }},
        {"modnn", [graph, plenty] { return modnn(*graph, plenty, true, {}).makespan; }},
        {"order",
         [graph] {
             const std::vector<std::uint8_t> keep(graph->tensors().size(), 0);
             return static_cast<double>(order::least_memory_order(order::order_problem(*graph, keep), {}).peak);
         }},
        {"place", [buffers] { return static_cast<double>(placement::place(buffers, {{}, true}, {}).height); }},
    };
}

} // namespace

TEST_CASE("the n-th allocation may fail, for any n, and the next call gives what the first gave") {
    for (const Case& one : cases()) {
        CAPTURE(one.name);
        const double expected = one.work();
        std::int64_t failed = 0;
        bool done = false;
        for (std::int64_t n = 0; !done; n += 1 + n / 20) {
            double found = 0;
            allocations_left = n;
            try {
                found = one.work();
                done = true;
            } catch (const std::bad_alloc&) {
                ++failed;
            } catch (const std::system_error&) { // how the standard library says it of some of its own
                ++failed;
            }
            const bool spent = allocations_left.exchange(-1) == 0;
            if (done) {
                CHECK(found == expected);
            }
            done = done && !spent;
            if (n % 7 == 0) {
                CHECK(one.work() == expected);
            }
        }
        CHECK(failed > 0);
        CHECK(one.work() == expected);
    }
}

TEST_CASE("threads that cannot start are done without") {
    for (int started = 0; started < 4; ++started) {
        threads_left = started;
        Workers workers(4);
        threads_left = -1;
        CHECK(workers.threads() == started + 1);
        std::vector<int> seen(100, 0);
        workers.each(100, [&](int index, int worker) {
            CHECK(worker < workers.threads());
            ++seen[static_cast<std::size_t>(index)];
        });
        CHECK(std::count(seen.begin(), seen.end(), 1) == 100);
    }
}

TEST_CASE("what a worker throws reaches the caller, and the next loop is whole") {
    for (const int threads : {1, 2, 4}) {
        Workers workers(threads);
        for (int bad = 0; bad < 100; ++bad) {
            CHECK_THROWS_AS(workers.each(100,
                                         [&](int index, int) {
                                             if (index == bad) {
                                                 throw std::out_of_range("one of many");
                                             }
                                         }),
                            std::out_of_range);
            std::atomic<int> count{0};
            workers.each(50, [&](int, int) { ++count; });
            CHECK(count == 50);
        }
    }
}
