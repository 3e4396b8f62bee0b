#include "memsched/support/parallel.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace memsched {

struct Workers::Shared {
    std::mutex mutex;
    std::condition_variable begin, end;
    const std::function<void(int, int)>* work = nullptr;
    std::atomic<int> next{0};
    int count = 0;
    int round = 0;   // incremented for each loop
    int ready = 0;   // threads that have started
    int running = 0; // threads that have not finished this round
    bool stop = false;
    std::exception_ptr failure; // the first one of this round
    std::vector<std::thread> threads;

    // An exception in one thread ends the round for all.
    void take(int worker) noexcept {
        guarded([&] {
            for (int index = next++; index < count; index = next++) {
                (*work)(index, worker);
            }
        });
    }

    template <typename Work> void guarded(const Work& some) noexcept {
        try {
            some();
        } catch (...) {
            next = count;
            const std::lock_guard lock(mutex);
            if (!failure) {
                failure = std::current_exception();
            }
        }
    }

    void serve(int worker) {
        // The first access to a thread's exception data allocates memory, and the C library ends the process if that
        // fails: so do it now, and not when the first allocation fails.
        const int uncaught = std::uncaught_exceptions();
        int seen = 0;
        std::unique_lock lock(mutex);
        ready += 1 + uncaught;
        end.notify_one();
        while (true) {
            begin.wait(lock, [&] { return stop || round != seen; });
            if (stop) {
                return;
            }
            seen = round;
            lock.unlock();
            take(worker);
            lock.lock();
            if (--running == 0) {
                end.notify_one();
            }
        }
    }
};

Workers::Workers(int threads) : shared_(std::make_unique<Shared>()) {
    const int wanted = threads > 0 ? threads : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    shared_->threads.reserve(static_cast<std::size_t>(wanted - 1));
    try {
        for (int worker = 1; worker < wanted; ++worker) {
            shared_->threads.emplace_back([shared = shared_.get(), worker] { shared->serve(worker); });
        }
    } catch (const std::system_error&) { // continue with the threads that run
    } catch (const std::bad_alloc&) {
    }
    std::unique_lock lock(shared_->mutex);
    shared_->end.wait(lock, [this] { return shared_->ready == static_cast<int>(shared_->threads.size()); });
}

Workers::~Workers() {
    {
        const std::lock_guard lock(shared_->mutex);
        shared_->stop = true;
    }
    shared_->begin.notify_all();
    for (std::thread& thread : shared_->threads) {
        thread.join();
    }
}

int Workers::threads() const { return static_cast<int>(shared_->threads.size()) + 1; }

void Workers::each(int count, const std::function<void(int, int)>& work, const std::function<void()>& waiting) {
    Shared& s = *shared_;
    if (s.threads.empty()) { // nothing is shared then, so several threads may call this
        for (int index = 0; index < count; ++index) {
            work(index, 0);
        }
        return;
    }
    {
        const std::lock_guard lock(s.mutex);
        s.work = &work;
        s.count = count;
        s.next = 0;
        s.failure = nullptr;
        s.running = static_cast<int>(s.threads.size());
        ++s.round;
    }
    s.begin.notify_all();
    s.take(0);
    std::unique_lock lock(s.mutex);
    while (s.running > 0) {
        s.end.wait(lock);
        if (s.running > 0 && waiting) {
            lock.unlock();
            s.guarded(waiting);
            lock.lock();
        }
    }
    if (s.failure) {
        std::rethrow_exception(std::exchange(s.failure, nullptr));
    }
}

void Workers::wake() { shared_->end.notify_one(); }

} // namespace memsched
