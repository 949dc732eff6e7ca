// SPDX-License-Identifier: Apache-2.0
// Lets extensions that are built with a newer glibc run with glibc 2.28.
//
// Defines the symbols of later versions that headers and libstdc++.a refer to.
// They are hidden, so that only the extension itself uses them.
#include <cstdint>

#if defined(__x86_64__) && defined(__GLIBC__)
#include <sys/random.h>

#include "csrc/glibc_jump.h"

#define PAX_HIDDEN __attribute__((visibility("hidden")))

// 2.29: without the error handling of SVID.
PAX_GLIBC_JUMP(log, "2.2.5");
// 2.34: in libc instead of libpthread.
PAX_GLIBC_JUMP(pthread_getspecific, "2.2.5");
PAX_GLIBC_JUMP(pthread_key_create, "2.2.5");
PAX_GLIBC_JUMP(pthread_key_delete, "2.2.5");
PAX_GLIBC_JUMP(pthread_once, "2.2.5");
PAX_GLIBC_JUMP(pthread_setspecific, "2.2.5");
// 2.38: with the prefix 0b of C23.
PAX_GLIBC_JUMP_TO(__isoc23_strtoul, strtoul, "2.2.5");

extern "C" {

// 2.33: functions of their own, which are one on x86-64.
__asm__(".symver pax_fxstat64, __fxstat64@GLIBC_2.2.5");
int pax_fxstat64(int version, int fd, void* status);
PAX_HIDDEN int fstat64(int fd, void* status) {
  return pax_fxstat64(1, fd, status);
}
PAX_HIDDEN int fstat(int fd, void* status) {
  return pax_fxstat64(1, fd, status);
}

// 2.32: 0 keeps reference counts atomic.
PAX_HIDDEN char __libc_single_threaded = 0;

// 2.36: for std::random_device.
PAX_HIDDEN uint32_t arc4random() noexcept {
  uint32_t value;
  if (getrandom(&value, sizeof(value), 0) != sizeof(value)) __builtin_trap();
  return value;
}

}  // extern "C"
#endif
