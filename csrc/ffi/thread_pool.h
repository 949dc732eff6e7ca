// SPDX-License-Identifier: Apache-2.0
// XLA's own thread pool as a kernel's Parallel.
#ifndef CSRC_FFI_THREAD_POOL_H_
#define CSRC_FFI_THREAD_POOL_H_

#include "csrc/kernels/parallel.h"
#include "xla/ffi/api/ffi.h"

namespace pax {

// The calling thread works too and waits only for tasks that have begun, so a
// pool whose threads are all busy delays nothing and cannot deadlock.
// The pool must outlive the result.
Parallel OnThreadPool(xla::ffi::ThreadPool& pool);

}  // namespace pax

#endif  // CSRC_FFI_THREAD_POOL_H_
