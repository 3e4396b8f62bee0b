#include "memsched/parallel.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace memsched {

struct Workers::Shared {
    std::mutex mutex;
    std::condition_variable begin, end;
    const std::function<void(int, int)>* work = nullptr;
    std::atomic<int> next{0};
    int count = 0;
    int round = 0;   // a new one for each loop
    int running = 0; // threads that have not finished this round
    bool stop = false;
    std::vector<std::thread> threads;

    void take(int worker) {
        for (int index = next++; index < count; index = next++) {
            (*work)(index, worker);
        }
    }

    void serve(int worker) {
        int seen = 0;
        std::unique_lock lock(mutex);
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
    for (int worker = 1; worker < wanted; ++worker) {
        shared_->threads.emplace_back([shared = shared_.get(), worker] { shared->serve(worker); });
    }
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

void Workers::each(int count, const std::function<void(int, int)>& work) {
    Shared& s = *shared_;
    if (s.threads.empty()) { // nothing is shared then, so that several threads may call
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
        s.running = static_cast<int>(s.threads.size());
        ++s.round;
    }
    s.begin.notify_all();
    s.take(0);
    std::unique_lock lock(s.mutex);
    s.end.wait(lock, [&] { return s.running == 0; });
}

} // namespace memsched
