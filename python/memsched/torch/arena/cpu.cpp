// The arena on the CPU: c10::SetCPUAllocator puts it before PyTorch's own allocator, from the first step on. That
// allocator goes on serving what no list names, and all other threads. Ours stays in its place: libraries such as
// oneDNN give memory back through whichever allocator is there then.

#include "serve.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdlib>
#include <pthread.h>

namespace {

using memsched::Counts;
using memsched::Event;
using memsched::Request;
using memsched::Server;

constexpr std::int64_t guard = 4096; // bytes on both sides of an arena that nobody may touch
constexpr int untouched = 0xA5;

Server& server = *new Server;               // for good: what lies in arenas may be given back after all else is gone
std::atomic<const void*> watched = nullptr; // what stands for the thread that is served
thread_local const char self = 0;
c10::Allocator* before = nullptr; // whose place ours has taken

c10::Allocator* others() {
    return before == nullptr || before->raw_deleter() == nullptr ? c10::GetDefaultCPUAllocator() : before;
}

void give_back(void* pointer) {
    if (pointer != nullptr) {
        server.give_back(pointer, [&] { others()->raw_deallocate(pointer); });
    }
}

struct ArenaAllocator final : c10::Allocator {
    c10::DataPtr allocate(std::size_t bytes) override {
        if (watched.load(std::memory_order_relaxed) != &self) {
            return (before == nullptr ? c10::GetDefaultCPUAllocator() : before)->allocate(bytes);
        }
        void* pointer = nullptr;
        if (bytes > 0) {
            pointer = server.allocate(static_cast<std::int64_t>(bytes), [&] { return others()->raw_allocate(bytes); });
        }
        return {pointer, pointer, &give_back, c10::Device(c10::DeviceType::CPU)};
    }

    c10::DeleterFnPtr raw_deleter() const override { return &give_back; }

    void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};

ArenaAllocator allocator;

const int at_fork = pthread_atfork([] { server.before_fork(); }, [] { server.after_fork(); },
                                   [] {
                                       watched = nullptr;
                                       server.after_fork_in_child();
                                   });

} // namespace

extern "C" {

// The calling thread's requests are served and counted from here on, and those of no other.
void arena_begin(int checked, int timed, int recorded) {
    constexpr std::uint8_t first = 255; // before all others
    server.watch({.checked = checked != 0, .timed = timed != 0, .recorded = recorded != 0});
    if (c10::GetCPUAllocator() != &allocator) {
        before = before == nullptr ? c10::GetCPUAllocator() : before; // one that came since may ask ours
        c10::SetCPUAllocator(&allocator, first);
    }
    watched = &self;
}

void arena_end() {
    watched = nullptr;
    server.expect(nullptr, nullptr, 0);
}

// The address of an arena of so many bytes, a multiple of 4096, between two guards; 0 without memory.
std::int64_t arena_make(std::int64_t bytes, int checked) {
    const std::int64_t whole = (bytes + 2 * guard + guard - 1) / guard * guard;
    char* const block = static_cast<char*>(std::aligned_alloc(guard, static_cast<std::size_t>(whole)));
    if (block == nullptr) {
        return 0;
    }
    char* const base = block + guard;
    std::memset(block, untouched, static_cast<std::size_t>(guard));
    std::memset(base + bytes, untouched, static_cast<std::size_t>(whole - guard - bytes));
    if (checked != 0) {
        std::memset(base, Server::empty, static_cast<std::size_t>(bytes));
    }
    server.add(base, bytes, [](char* from, std::int64_t) { std::free(from - guard); });
    return reinterpret_cast<std::int64_t>(base);
}

// Whether the bytes on both sides of the arena are as they were.
int arena_is_sound(std::int64_t address, std::int64_t bytes) {
    const char* const base = reinterpret_cast<const char*>(address);
    const auto same = [](const char* from, const char* to) {
        return std::all_of(from, to, [](char byte) { return static_cast<unsigned char>(byte) == untouched; });
    };
    return same(base - guard, base) && same(base + bytes, base + bytes + guard) ? 1 : 0;
}

} // extern "C"

#include "calls.h"
