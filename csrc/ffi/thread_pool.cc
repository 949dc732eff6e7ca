// SPDX-License-Identifier: Apache-2.0
#include "csrc/ffi/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>

namespace pax {
namespace {

using Body = std::function<void(int64_t, int64_t)>;

// Outlives the call: a helper that starts after it finds no remaining task.
class Tasks {
 public:
  Tasks(int64_t count, const Body& body) : count_(count), body_(&body) {}

  void Work(int64_t worker) {
    int64_t done = 0;
    for (int64_t i = next_++; i < count_; i = next_++, ++done) {
      (*body_)(i, worker);
    }
    if (done == 0) return;
    std::lock_guard<std::mutex> lock(mutex_);
    finished_ += done;
    if (finished_ == count_) all_finished_.notify_one();
  }

  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    all_finished_.wait(lock, [this] { return finished_ == count_; });
  }

 private:
  const int64_t count_;
  const Body* const body_;
  std::atomic<int64_t> next_{0};
  std::mutex mutex_;
  std::condition_variable all_finished_;
  int64_t finished_ = 0;
};

}  // namespace

Parallel OnThreadPool(xla::ffi::ThreadPool& pool) {
  const int64_t workers = std::max<int64_t>(pool.num_threads(), 1);
  return {workers, [workers, &pool](int64_t count, const Body& body) {
            if (count == 0) return;
            auto tasks = std::make_shared<Tasks>(count, body);
            // The scheduled helpers hold `body`: every exit waits for them.
            try {
              for (int64_t w = 1; w < std::min(workers, count); ++w) {
                pool.Schedule([tasks, w] { tasks->Work(w); });
              }
            } catch (const std::bad_alloc&) {
              // Fewer helpers; the calling thread runs all other tasks.
            }
            tasks->Work(0);
            tasks->Wait();
          }};
}

}  // namespace pax
