// The arena on a CUDA device, as a pluggable allocator of PyTorch: it serves all that the process asks for. What no
// list names comes from blocks of the driver, which are kept for requests of the same size and stream.
//
// The runtime's functions are given by address, so that this is compiled without CUDA and tried with stand-ins.

#include "serve.h"

#include <cstddef>
#include <new>
#include <set>
#include <sys/types.h>
#include <tuple>

namespace {

using memsched::Counts;
using memsched::Event;
using memsched::Request;
using memsched::Server;

struct Runtime {
    int (*allocate)(void**, std::size_t) = nullptr; // cudaMalloc
    int (*give_back)(void*) = nullptr;              // cudaFree
    int (*wait)() = nullptr;                        // cudaDeviceSynchronize
};

struct OutOfMemory final : std::bad_alloc {
    const char* what() const noexcept override {
        return "CUDA out of memory: the driver has no block for this request, and memsched's arena no free one";
    }
};

// Blocks of the driver, and those among them that are free. Not of an arena.
class Blocks {
  public:
    void* allocate(Runtime& runtime, std::int64_t bytes, int device, void* stream) {
        const std::int64_t rounded = round(bytes);
        auto& free = free_[{device, stream, rounded}];
        if (!free.empty()) {
            void* const pointer = free.back();
            free.pop_back();
            return pointer;
        }
        void* pointer = nullptr;
        if (runtime.allocate(&pointer, static_cast<std::size_t>(rounded)) != 0) {
            trim(runtime);
            if (runtime.allocate(&pointer, static_cast<std::size_t>(rounded)) != 0) {
                throw OutOfMemory();
            }
        }
        reserved_ += rounded;
        return pointer;
    }

    void give_back(void* pointer, std::int64_t bytes, int device, void* stream) {
        free_[{device, stream, round(bytes)}].push_back(pointer);
    }

    // Give what is free back to the driver.
    void trim(Runtime& runtime) {
        runtime.wait();
        for (const auto& [kind, blocks] : free_) {
            for (void* const pointer : blocks) {
                runtime.give_back(pointer);
                reserved_ -= std::get<std::int64_t>(kind);
            }
        }
        free_.clear();
    }

    std::int64_t reserved() const { return reserved_; }

  private:
    // As much as PyTorch's own allocator rounds to: 512 bytes, and 2 MiB from 1 MiB up.
    static std::int64_t round(std::int64_t bytes) {
        const std::int64_t unit = bytes < (std::int64_t{1} << 20) ? 512 : std::int64_t{1} << 21;
        return (bytes + unit - 1) / unit * unit;
    }

    std::map<std::tuple<int, void*, std::int64_t>, std::vector<void*>> free_;
    std::int64_t reserved_ = 0;
};

struct Usage {
    std::int64_t allocated = 0, peak = 0, arenas = 0;
};

Server& server = *new Server; // for good, as in cpu.cpp
Runtime runtime;
Blocks blocks;
Usage usage;
std::set<const void*> shared; // pointers that another stream uses, too
std::mutex mutex;             // guards all of these but the server
bool watching = false;
int watched_device = 0;
void* watched_stream = nullptr;

} // namespace

extern "C" {

void arena_runtime(int (*allocate)(void**, std::size_t), int (*give_back)(void*), int (*wait)()) {
    runtime = {.allocate = allocate, .give_back = give_back, .wait = wait};
}

// As PyTorch calls it, of any thread.
void* arena_cuda_allocate(ssize_t bytes, int device, void* stream) {
    if (bytes <= 0) {
        return nullptr;
    }
    const auto own = [&] {
        const std::lock_guard lock(mutex);
        return blocks.allocate(runtime, bytes, device, stream);
    };
    const bool mine = watching && device == watched_device && stream == watched_stream;
    void* const pointer = mine ? server.allocate(bytes, own) : own();
    const std::lock_guard lock(mutex);
    usage.allocated += bytes;
    usage.peak = std::max(usage.peak, usage.allocated);
    return pointer;
}

void arena_cuda_give_back(void* pointer, ssize_t bytes, int device, void* stream) {
    if (pointer == nullptr) {
        return;
    }
    {
        const std::lock_guard lock(mutex);
        usage.allocated -= bytes;
        if (shared.erase(pointer) > 0) {
            runtime.wait(); // whatever the other stream still does with it
        }
    }
    server.give_back(pointer, [&] {
        const std::lock_guard lock(mutex);
        blocks.give_back(pointer, bytes, device, stream);
    });
}

void arena_cuda_record_stream(void* pointer, void*) {
    const std::lock_guard lock(mutex);
    shared.insert(pointer);
}

// Requests of this stream are served and counted from here on.
void arena_cuda_begin(int device, void* stream, int recorded) {
    server.watch({.recorded = recorded != 0});
    watched_device = device;
    watched_stream = stream;
    watching = true;
}

void arena_end() {
    watching = false;
    server.expect(nullptr, nullptr, 0);
}

// The address of an arena of so many bytes, in place of all free blocks; 0 without memory.
std::int64_t arena_make(std::int64_t bytes, int) {
    void* base = nullptr;
    {
        const std::lock_guard lock(mutex);
        blocks.trim(runtime);
        if (runtime.allocate(&base, static_cast<std::size_t>(bytes)) != 0) {
            return 0;
        }
        usage.arenas += bytes;
    }
    server.add(static_cast<char*>(base), bytes, [](char* from, std::int64_t many) {
        const std::lock_guard lock(mutex);
        usage.arenas -= many;
        runtime.give_back(from); // which waits for what the device still does
    });
    return reinterpret_cast<std::int64_t>(base);
}

std::int64_t arena_cuda_allocated() { return usage.allocated; }
std::int64_t arena_cuda_peak() { return usage.peak; }
std::int64_t arena_cuda_reserved() { return usage.arenas + blocks.reserved(); }
void arena_cuda_reset_peak() { usage.peak = usage.allocated; }

} // extern "C"

#include "calls.h"
