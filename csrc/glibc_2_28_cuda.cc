// SPDX-License-Identifier: Apache-2.0
// As glibc_2_28.cc, for the symbols of the static CUDA runtime.
//
// They have been in libc since 2.34; the BUILD rule links the libraries that
// had them before, which newer versions keep as empty ones.
#include <features.h>

#if defined(__x86_64__) && defined(__GLIBC__)
#include "csrc/glibc_jump.h"

// libdl.
PAX_GLIBC_JUMP(dlclose, "2.2.5");
PAX_GLIBC_JUMP(dlerror, "2.2.5");
PAX_GLIBC_JUMP(dlmopen, "2.3.4");
PAX_GLIBC_JUMP(dlopen, "2.2.5");
PAX_GLIBC_JUMP(dlsym, "2.2.5");
PAX_GLIBC_JUMP(dlvsym, "2.2.5");

// libpthread.
PAX_GLIBC_JUMP(pthread_condattr_setpshared, "2.2.5");
PAX_GLIBC_JUMP(pthread_create, "2.2.5");
PAX_GLIBC_JUMP(pthread_detach, "2.2.5");
PAX_GLIBC_JUMP(pthread_join, "2.2.5");
PAX_GLIBC_JUMP(pthread_kill, "2.2.5");
PAX_GLIBC_JUMP(pthread_mutex_trylock, "2.2.5");
PAX_GLIBC_JUMP(pthread_mutexattr_destroy, "2.2.5");
PAX_GLIBC_JUMP(pthread_mutexattr_init, "2.2.5");
PAX_GLIBC_JUMP(pthread_mutexattr_setprotocol, "2.4");
PAX_GLIBC_JUMP(pthread_mutexattr_setpshared, "2.2.5");
PAX_GLIBC_JUMP(pthread_mutexattr_settype, "2.2.5");
PAX_GLIBC_JUMP(pthread_rwlock_destroy, "2.2.5");
PAX_GLIBC_JUMP(pthread_rwlock_init, "2.2.5");
PAX_GLIBC_JUMP(pthread_rwlock_rdlock, "2.2.5");
PAX_GLIBC_JUMP(pthread_rwlock_tryrdlock, "2.2.5");
PAX_GLIBC_JUMP(pthread_rwlock_trywrlock, "2.2.5");
PAX_GLIBC_JUMP(pthread_rwlock_unlock, "2.2.5");
PAX_GLIBC_JUMP(pthread_rwlock_wrlock, "2.2.5");
PAX_GLIBC_JUMP(pthread_rwlockattr_destroy, "2.2.5");
PAX_GLIBC_JUMP(pthread_rwlockattr_init, "2.2.5");
PAX_GLIBC_JUMP(pthread_rwlockattr_setpshared, "2.2.5");
PAX_GLIBC_JUMP(pthread_spin_destroy, "2.2.5");
PAX_GLIBC_JUMP(pthread_spin_init, "2.2.5");
PAX_GLIBC_JUMP(pthread_spin_lock, "2.2.5");
PAX_GLIBC_JUMP(pthread_spin_trylock, "2.2.5");
PAX_GLIBC_JUMP(pthread_spin_unlock, "2.2.5");
PAX_GLIBC_JUMP(sem_destroy, "2.2.5");
PAX_GLIBC_JUMP(sem_init, "2.2.5");
PAX_GLIBC_JUMP(sem_post, "2.2.5");
PAX_GLIBC_JUMP(sem_timedwait, "2.2.5");
PAX_GLIBC_JUMP(sem_trywait, "2.2.5");
PAX_GLIBC_JUMP(sem_wait, "2.2.5");

// librt.
PAX_GLIBC_JUMP(shm_open, "2.2.5");
PAX_GLIBC_JUMP(shm_unlink, "2.2.5");
#endif
