// A few threads that share a loop. Results must not depend on which thread computes what.
#pragma once

#include <functional>
#include <memory>

namespace memsched {

class Workers {
  public:
    // threads >= 1, including the caller's; 0: one per core. Fewer if the system cannot start more.
    explicit Workers(int threads);
    ~Workers();
    Workers(const Workers&) = delete;
    Workers& operator=(const Workers&) = delete;

    int threads() const;

    // Calls work(index, worker) for each index below count, in any order, worker < threads(); returns when all are
    // done. The first exception thrown by work reaches the caller once all threads are idle; work that was not started
    // is skipped. With one thread several callers may be here at once, otherwise only one. While the caller waits, it
    // calls `waiting` whenever a thread wakes it; exceptions of that reach the caller, too.
    void each(int count, const std::function<void(int, int)>& work, const std::function<void()>& waiting = {});

    // Wakes the caller; any working thread may call it.
    void wake();

  private:
    struct Shared;
    std::unique_ptr<Shared> shared_;
};

} // namespace memsched
