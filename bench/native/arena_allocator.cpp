// A CPU allocator for PyTorch that serves requests from one block of memory, at addresses that were planned. All other
// requests, and those of other threads, go to PyTorch's own allocator. Called by bench/native/arena.py.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

namespace {

constexpr std::int64_t alignment = 64; // that of PyTorch's own allocator
constexpr std::int64_t guard = 4096;   // bytes on both sides of the arena that nobody may touch
constexpr int empty = 0xFF;            // a byte of memory that holds nothing: NaN in every floating type
constexpr int untouched = 0xA5;

struct Request {
    std::int64_t bytes;
    std::int64_t address; // -1: PyTorch's own allocator is to serve it
};

struct Event {
    std::int64_t pointer;
    std::int64_t bytes; // 0: it is given back
};

struct Count {
    std::int64_t number, bytes;

    void add(std::int64_t more) {
        ++number;
        bytes += more;
    }
};

// Of the watching thread; read as an array of int64 by arena.py.
struct Counts {
    Count planned;           // served at planned addresses
    Count let_pass;          // named by a list, and left to PyTorch's own allocator by it
    Count strange;           // asked for while there is a list, and not what it names next
    Count other;             // asked for while there is none
    std::int64_t given_back; // of all of these
    std::int64_t overlaps;   // planned ranges that held something when they were served; only if checked
    std::int64_t allocate_ns, give_back_ns;
};

struct Arena {
    char* block = nullptr; // with both guards
    char* base = nullptr;
    std::int64_t bytes = 0;
    bool checked = false, timed = false, recorded = false;
    Counts counts{};
    std::vector<Event> events;
    std::mutex mutex; // guards `held`: memory may be given back by any thread
    std::map<char*, std::int64_t> held;
};

Arena arena;
thread_local bool watching = false;
thread_local const Request* list = nullptr;
thread_local std::int64_t length = 0, position = 0;

using Clock = std::chrono::steady_clock;

std::int64_t since(Clock::time_point start) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

bool inside(const void* pointer) { return pointer >= arena.base && pointer < arena.base + arena.bytes; }

void hold(char* pointer, std::int64_t bytes) {
    const std::lock_guard lock(arena.mutex);
    const auto next = arena.held.lower_bound(pointer);
    const bool overlaps =
        (next != arena.held.end() && next->first < pointer + bytes) ||
        (next != arena.held.begin() && std::prev(next)->first + std::prev(next)->second > pointer) ||
        std::any_of(pointer, pointer + bytes, [](char byte) { return static_cast<unsigned char>(byte) != empty; });
    arena.counts.overlaps += overlaps;
    arena.held[pointer] = bytes;
}

void let_go(char* pointer) {
    const std::lock_guard lock(arena.mutex);
    const auto found = arena.held.find(pointer);
    if (found != arena.held.end()) {
        std::memset(pointer, empty, static_cast<std::size_t>(found->second));
        arena.held.erase(found);
    }
}

void give_back_now(void* pointer) {
    if (!inside(pointer)) {
        c10::GetDefaultCPUAllocator()->raw_deallocate(pointer);
    } else if (arena.checked) {
        let_go(static_cast<char*>(pointer));
    }
}

void give_back(void* pointer) {
    if (pointer == nullptr) {
        return;
    }
    if (!watching) {
        give_back_now(pointer);
        return;
    }
    ++arena.counts.given_back;
    if (arena.recorded) {
        arena.events.push_back({reinterpret_cast<std::int64_t>(pointer), 0});
    }
    const auto start = arena.timed ? Clock::now() : Clock::time_point{};
    give_back_now(pointer);
    arena.counts.give_back_ns += arena.timed ? since(start) : 0;
}

// The memory of a request of the watching thread.
void* serve(std::int64_t bytes) {
    Counts& counts = arena.counts;
    const bool named = position < length && list[position].bytes == bytes;
    const std::int64_t address = named ? list[position].address : -1;
    if (named) {
        ++position;
    }
    if (address >= 0) {
        char* const pointer = arena.base + address;
        if (arena.checked) {
            hold(pointer, bytes);
        }
        counts.planned.add(bytes);
        return pointer;
    }
    (named ? counts.let_pass : list != nullptr ? counts.strange : counts.other).add(bytes);
    return c10::GetDefaultCPUAllocator()->raw_allocate(static_cast<std::size_t>(bytes));
}

struct ArenaAllocator final : c10::Allocator {
    c10::DataPtr allocate(std::size_t bytes) override {
        if (bytes == 0) {
            return {nullptr, nullptr, &give_back, c10::Device(c10::DeviceType::CPU)};
        }
        void* pointer = nullptr;
        if (!watching) {
            pointer = c10::GetDefaultCPUAllocator()->raw_allocate(bytes);
        } else {
            const auto start = arena.timed ? Clock::now() : Clock::time_point{};
            pointer = serve(static_cast<std::int64_t>(bytes));
            arena.counts.allocate_ns += arena.timed ? since(start) : 0;
            if (arena.recorded) {
                arena.events.push_back({reinterpret_cast<std::int64_t>(pointer), static_cast<std::int64_t>(bytes)});
            }
        }
        return {pointer, pointer, &give_back, c10::Device(c10::DeviceType::CPU)};
    }

    c10::DeleterFnPtr raw_deleter() const override { return &give_back; }

    void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};

ArenaAllocator allocator;

} // namespace

extern "C" {

// From here on PyTorch asks this allocator, or its own again.
void arena_use(int on) {
    constexpr std::uint8_t first = 255; // before all others
    c10::SetCPUAllocator(on ? static_cast<c10::Allocator*>(&allocator) : c10::GetDefaultCPUAllocator(), first);
}

// Makes an arena in the place of the one before, which nobody may use any more; its address, 0 without memory.
std::int64_t arena_make(std::int64_t bytes) {
    std::free(arena.block);
    arena.held.clear();
    const std::int64_t whole = (bytes + 2 * guard + guard - 1) / guard * guard;
    arena.block = static_cast<char*>(std::aligned_alloc(guard, static_cast<std::size_t>(whole)));
    arena.base = arena.block == nullptr ? nullptr : arena.block + guard;
    arena.bytes = arena.base == nullptr ? 0 : bytes;
    static_assert(guard % alignment == 0);
    if (arena.base != nullptr) {
        std::memset(arena.block, untouched, static_cast<std::size_t>(whole));
        std::memset(arena.base, empty, static_cast<std::size_t>(bytes));
    }
    return reinterpret_cast<std::int64_t>(arena.base);
}

// Whether the bytes on both sides of the arena are as they were.
int arena_is_sound() {
    const auto same = [](const char* from, const char* to) {
        return std::all_of(from, to, [](char byte) { return static_cast<unsigned char>(byte) == untouched; });
    };
    return same(arena.block, arena.base) && same(arena.base + arena.bytes, arena.base + arena.bytes + guard);
}

// The calling thread is watched, and its counts begin at 0. `checked`: memory that is given back is filled with NaN,
// and must be full of it when it is served again. `timed`: allocating and giving back is. `recorded`: each is written
// down.
void arena_watch(int checked, int timed, int recorded) {
    arena.checked = checked;
    arena.timed = timed;
    arena.recorded = recorded;
    arena.counts = {};
    arena.events.clear();
    watching = true;
}

void arena_unwatch() { watching = false; }

// The requests that the calling thread will have, in this order. The list must live until the next one is given.
void arena_expect(const Request* requests, std::int64_t count) {
    list = requests;
    length = count;
    position = 0;
}

std::int64_t arena_position() { return position; }

void arena_counts(Counts* counts) { *counts = arena.counts; }

std::int64_t arena_events() { return static_cast<std::int64_t>(arena.events.size()); }

void arena_read_events(Event* events) { std::copy(arena.events.begin(), arena.events.end(), events); }

// How long the clock itself takes, on average over `times` measurements of nothing.
double arena_clock_ns(std::int64_t times) {
    std::int64_t sum = 0;
    for (std::int64_t k = 0; k < times; ++k) {
        sum += since(Clock::now());
    }
    return static_cast<double>(sum) / static_cast<double>(times);
}
}
