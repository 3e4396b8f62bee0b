// A few threads that share a loop. What they compute must not depend on who computes it.
#pragma once

#include <functional>
#include <memory>

namespace memsched {

class Workers {
  public:
    // threads >= 1, the caller's included; 0: as many as the machine has. Fewer where the system starts no more.
    explicit Workers(int threads);
    ~Workers();
    Workers(const Workers&) = delete;
    Workers& operator=(const Workers&) = delete;

    int threads() const;

    // work(index, worker) for each index below count, in any order, worker < threads(); returns when all are done. What
    // work throws reaches the caller when all threads are at rest: the first of what was thrown; what was not begun is
    // left. With one thread any number of callers may be here at once, with more only one. While the caller waits for
    // others it calls `waiting` whenever one of them wakes it; what that throws reaches it, too.
    void each(int count, const std::function<void(int, int)>& work, const std::function<void()>& waiting = {});

    // Of any thread at work.
    void wake();

  private:
    struct Shared;
    std::unique_ptr<Shared> shared_;
};

} // namespace memsched
