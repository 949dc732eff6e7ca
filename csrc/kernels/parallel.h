// SPDX-License-Identifier: Apache-2.0
#ifndef CSRC_KERNELS_PARALLEL_H_
#define CSRC_KERNELS_PARALLEL_H_

#include <cstdint>
#include <functional>

namespace pax {

// Runs body(task, worker) for every task in [0, tasks). Concurrent bodies have
// different workers, which are less than `workers`.
struct Parallel {
  int64_t workers;
  std::function<void(int64_t tasks,
                     const std::function<void(int64_t, int64_t)>& body)>
      run;
};

// A Parallel that runs all tasks on the calling thread.
inline Parallel Serial() {
  return {1,
          [](int64_t tasks, const std::function<void(int64_t, int64_t)>& body) {
            for (int64_t i = 0; i < tasks; ++i) body(i, 0);
          }};
}

}  // namespace pax

#endif  // CSRC_KERNELS_PARALLEL_H_
