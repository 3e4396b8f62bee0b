// Serves requests for memory from one block, at addresses that were planned. It knows nothing of PyTorch or of a
// device: cpu.cpp and cuda.cpp put it before PyTorch's allocators. Compiled and called by native.py.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace memsched {

struct Request {
    std::int64_t bytes;
    std::int64_t address; // -1: another allocator is to serve it
};

struct Event {
    std::int64_t pointer;
    std::int64_t bytes; // 0: it is given back
};

struct Count {
    std::int64_t number = 0, bytes = 0;

    void add(std::int64_t more) {
        ++number;
        bytes += more;
    }
};

// Read as an array of int64 by native.py.
struct Counts {
    Count planned;               // served at planned addresses
    Count let_pass;              // named by the list, and left to the other allocator by it
    Count strange;               // asked for while there is a list, and not what it names next
    Count blocked;               // named by the list, and something else still lies there
    Count other;                 // asked for while there is no list
    std::int64_t given_back = 0; // of all of these
    std::int64_t damaged = 0;    // somebody had written to what held nothing; only if checked
    std::int64_t allocate_ns = 0, give_back_ns = 0;
};

// A block of memory, and what of it is held.
class Arena {
  public:
    using Free = void (*)(char* base, std::int64_t bytes);

    Arena(char* base, std::int64_t bytes, Free free) : base_(base), bytes_(bytes), free_(free) {}
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    ~Arena() { free_(base_, bytes_); }

    bool abandoned = false; // it goes when nothing lies there any more

    char* base() const { return base_; }
    bool contains(const char* pointer) const { return pointer >= base_ && pointer < base_ + bytes_; }
    bool is_empty() const { return held_.empty(); }

    // Whether the range is inside and nothing lies there; it is held from now on.
    bool take(std::int64_t address, std::int64_t bytes) {
        const auto next = held_.lower_bound(address);
        if (address + bytes > bytes_ || (next != held_.end() && next->first < address + bytes) ||
            (next != held_.begin() && std::prev(next)->second > address)) {
            return false;
        }
        held_.emplace_hint(next, address, address + bytes);
        return true;
    }

    // The bytes that lay there; 0 if nothing did.
    std::int64_t give_back(const char* pointer) {
        const auto found = held_.find(pointer - base_);
        if (found == held_.end()) {
            return 0;
        }
        const std::int64_t bytes = found->second - found->first;
        held_.erase(found);
        return bytes;
    }

  private:
    char* base_;
    std::int64_t bytes_;
    Free free_;
    std::map<std::int64_t, std::int64_t> held_; // from where to where
};

// What the steps of a process ask for, and where it comes from.
class Server {
  public:
    using Clock = std::chrono::steady_clock;

    struct Watch {
        bool checked = false;  // what is given back is filled with NaN, and must be full of it when it is served again
        bool timed = false;    // how long allocating and giving back takes
        bool recorded = false; // each request is written down, and when it is given back
    };

    static constexpr int empty = 0xFF; // a byte of memory that holds nothing: NaN in every floating type

    static std::int64_t since(Clock::time_point start) {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
    }

    // Around a fork: no other thread holds the lock in the child, where no step goes on.
    void before_fork() { mutex_.lock(); }
    void after_fork() { mutex_.unlock(); }
    void after_fork_in_child() {
        watch_ = {};
        forget_list();
        events_.clear();
        mutex_.unlock();
    }

    // A step begins: counts are 0.
    void watch(Watch how) {
        const std::lock_guard lock(mutex_);
        watch_ = how;
        counts_ = {};
    }

    void add(char* base, std::int64_t bytes, Arena::Free free) {
        const std::lock_guard lock(mutex_);
        arenas_.emplace_back(base, bytes, free);
    }

    // Free the arena, now or when nothing lies there any more.
    void drop(const char* base) {
        const std::lock_guard lock(mutex_);
        const auto found = find(base);
        if (found != arenas_.end()) {
            if (arena_ == &*found) {
                forget_list();
            }
            found->abandoned = true;
            free_if_left(found);
        }
    }

    // What will be asked for from now on, in this order, and the arena where that is to lie. Without an arena nothing
    // is expected.
    void expect(const char* base, const Request* list, std::int64_t length) {
        const std::lock_guard lock(mutex_);
        forget_list();
        if (const auto found = find(base); found != arenas_.end()) {
            arena_ = &*found;
            list_.assign(list, list + length);
        }
    }

    template <typename Other> void* allocate(std::int64_t bytes, Other&& other) {
        const std::lock_guard lock(mutex_);
        const auto start = watch_.timed ? Clock::now() : Clock::time_point{};
        void* pointer = planned(bytes);
        if (pointer == nullptr) {
            pointer = other();
        }
        counts_.allocate_ns += watch_.timed ? since(start) : 0;
        note(pointer, bytes);
        return pointer;
    }

    template <typename Other> void give_back(void* pointer, Other&& other) {
        const std::lock_guard lock(mutex_);
        const auto start = watch_.timed ? Clock::now() : Clock::time_point{};
        char* const place = static_cast<char*>(pointer);
        const auto found =
            std::find_if(arenas_.begin(), arenas_.end(), [&](Arena& one) { return one.contains(place); });
        if (found == arenas_.end()) {
            other();
        } else {
            const std::int64_t bytes = found->give_back(place);
            if (watch_.checked) {
                std::memset(place, empty, static_cast<std::size_t>(bytes));
            }
            free_if_left(found);
        }
        counts_.give_back_ns += watch_.timed ? since(start) : 0;
        ++counts_.given_back;
        note(pointer, 0);
    }

    Counts counts() const { return counts_; }
    std::int64_t position() const { return position_; }
    std::int64_t number_of_events() const { return static_cast<std::int64_t>(events_.size()); }

    // The first events, as many as there is room for; how many these are. Others stay.
    std::int64_t take_events(Event* into, std::int64_t room) {
        const std::lock_guard lock(mutex_);
        const auto end = events_.begin() + std::min(room, static_cast<std::int64_t>(events_.size()));
        std::copy(events_.begin(), end, into);
        const std::int64_t taken = end - events_.begin();
        events_.erase(events_.begin(), end);
        return taken;
    }

  private:
    using Place = std::list<Arena>::iterator;
    static constexpr std::int64_t window = 32;            // requests of the list that may be missing at once
    static constexpr std::size_t most_events = 4'000'000; // of a step that nobody ends

    Place find(const char* base) {
        return std::find_if(arenas_.begin(), arenas_.end(), [&](Arena& one) { return one.base() == base; });
    }

    void free_if_left(Place place) {
        if (place->abandoned && place->is_empty()) {
            arenas_.erase(place);
        }
    }

    void forget_list() {
        arena_ = nullptr;
        list_.clear();
        position_ = 0;
    }

    void note(const void* pointer, std::int64_t bytes) {
        if (watch_.recorded && events_.size() < most_events) {
            events_.push_back({reinterpret_cast<std::int64_t>(pointer), bytes});
        }
    }

    // The place of a request in the list: the next of so many bytes. Where it lies nothing else does, whatever comes.
    bool is_named(std::int64_t bytes, Request& named) {
        const std::int64_t last = std::min(static_cast<std::int64_t>(list_.size()), position_ + window);
        for (std::int64_t k = position_; k < last; ++k) {
            if (list_[static_cast<std::size_t>(k)].bytes == bytes) {
                named = list_[static_cast<std::size_t>(k)];
                position_ = k + 1;
                return true;
            }
        }
        return false;
    }

    void* planned(std::int64_t bytes) {
        Request named{};
        if (!is_named(bytes, named)) {
            (arena_ == nullptr ? counts_.other : counts_.strange).add(bytes);
            return nullptr;
        }
        if (named.address < 0) {
            counts_.let_pass.add(bytes);
            return nullptr;
        }
        if (!arena_->take(named.address, bytes)) {
            counts_.blocked.add(bytes);
            return nullptr;
        }
        counts_.planned.add(bytes);
        char* const pointer = arena_->base() + named.address;
        if (watch_.checked) {
            counts_.damaged += std::any_of(pointer, pointer + bytes,
                                           [](char byte) { return static_cast<unsigned char>(byte) != empty; });
        }
        return pointer;
    }

    std::mutex mutex_; // memory may be given back by any thread
    std::list<Arena> arenas_;
    Arena* arena_ = nullptr;
    std::vector<Request> list_;
    std::int64_t position_ = 0;
    Watch watch_;
    Counts counts_;
    std::vector<Event> events_;
};

} // namespace memsched
