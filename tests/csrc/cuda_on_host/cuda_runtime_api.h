// SPDX-License-Identifier: Apache-2.0
// A substitute for CUDA's header that runs kernels on the host, one thread
// block after the other. A CUDA thread is a coroutine that runs until its next
// barrier; the threads of a block, or of a warp, pass a barrier together.

#ifndef TESTS_CSRC_CUDA_ON_HOST_CUDA_RUNTIME_API_H_
#define TESTS_CSRC_CUDA_ON_HOST_CUDA_RUNTIME_API_H_

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __launch_bounds__(threads)
// Blocks run one at a time.
#define __shared__ static

struct dim3 {
  dim3(unsigned x = 1) : x(x) {}  // NOLINT: CUDA's is not explicit either
  unsigned x;
};

enum cudaError_t { cudaSuccess, cudaErrorInvalidValue };
using cudaStream_t = void*;

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};

inline dim3 blockIdx, threadIdx;

namespace cuda_on_host {

constexpr unsigned kWarp = 32;
constexpr size_t kStackBytes = 64 << 10;

// The threads of one block.
class Block {
 public:
  explicit Block(unsigned size)
      : threads_(size),
        warps_((size + kWarp - 1) / kWarp),
        stacks_(new char[size * kStackBytes]) {}

  // Runs `body` in each thread, to its end.
  void Run(const std::function<void()>& body) {
    body_ = &body;
    running_ = this;
    for (unsigned t = 0; t < threads_.size(); ++t) {
      ucontext_t& context = threads_[t].context;
      getcontext(&context);
      context.uc_stack.ss_sp = stacks_.get() + t * kStackBytes;
      context.uc_stack.ss_size = kStackBytes;
      context.uc_link = &scheduler_;
      makecontext(&context, &Block::RunThread, 0);
    }
    bool any = true;
    while (any) {
      any = false;
      for (unsigned t = 0; t < threads_.size(); ++t) {
        if (threads_[t].done) continue;
        any = true;
        threadIdx.x = t;
        swapcontext(&scheduler_, &threads_[t].context);
      }
    }
  }

  static Block& Running() { return *running_; }

  void Barrier() { Wait(block_, threads_.size()); }

  // Returns `value` of the thread of the same warp whose lane differs by
  // `mask`.
  template <class T>
  T ExchangeInWarp(T value, unsigned mask) {
    static_assert(sizeof(T) <= sizeof(uint64_t));
    const unsigned lane = threadIdx.x % kWarp;
    Warp& warp = warps_[threadIdx.x / kWarp];
    // A buffer is written again after the next barrier but one.
    uint64_t* values = warp.values[warp.barrier.passed % 2];
    std::memcpy(&values[lane], &value, sizeof(T));
    Wait(warp.barrier, kWarp);
    std::memcpy(&value, &values[lane ^ mask], sizeof(T));
    return value;
  }

 private:
  struct Thread {
    ucontext_t context;
    bool done = false;
  };
  struct Gate {
    size_t waiting = 0;
    size_t passed = 0;
  };
  struct Warp {
    Gate barrier;
    uint64_t values[2][kWarp];
  };

  static void RunThread() {
    (*running_->body_)();
    running_->threads_[threadIdx.x].done = true;
  }

  void Wait(Gate& gate, size_t threads) {
    const size_t before = gate.passed;
    if (++gate.waiting == threads) {
      gate.waiting = 0;
      ++gate.passed;
    }
    while (gate.passed == before) {
      const unsigned thread = threadIdx.x;
      swapcontext(&threads_[thread].context, &scheduler_);
    }
  }

  static inline Block* running_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::unique_ptr<char[]> stacks_;
  Gate block_;
  ucontext_t scheduler_;
  const std::function<void()>* body_ = nullptr;
};

}  // namespace cuda_on_host

inline void __syncthreads() { cuda_on_host::Block::Running().Barrier(); }

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int offset) {
  if (mask != 0xffffffffu) std::abort();
  return cuda_on_host::Block::Running().ExchangeInWarp(value, offset);
}

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config,
                               void (*kernel)(Parameters...),
                               Arguments... arguments) {
  for (unsigned block = 0; block < config->gridDim.x; ++block) {
    blockIdx.x = block;
    cuda_on_host::Block(config->blockDim.x).Run([&] { kernel(arguments...); });
  }
  return cudaSuccess;
}

#endif  // TESTS_CSRC_CUDA_ON_HOST_CUDA_RUNTIME_API_H_
