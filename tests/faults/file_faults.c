// SPDX-License-Identifier: Apache-2.0
// Faults in the calls of a program that change the files of one directory.
//
//   LD_PRELOAD=file_faults.so FAULT_BELOW=/tmp/job FAULT_AT=17 program
//
// FAULT_BELOW   directory whose files count
// FAULT_AT      index of the first call with a fault, from 1; 0 or unset: none
// FAULT_COUNT   number of calls with a fault; default 1, 0: all from FAULT_AT
// FAULT_ACTION  kill: SIGKILL before the call (default)
//               torn: SIGKILL after half of a write, otherwise before the call
//               short: writes half and returns its size; other calls succeed
//               slow: the call takes 20 ms longer
//               a number: the call fails with this errno
// FAULT_LOG     file that gets a line `call path` for each call up to the fault
//
// The variables are read at each call: a forked child sets its own. A program
// that makes several faults calls `file_faults_restart` before each.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum Fault { kNone, kKill, kTorn, kShort, kError };
enum { kPathSize = 2 * PATH_MAX, kSlowMicroseconds = 20000 };

static atomic_int num_calls;

// Starts counting at 1 again; returns the number of calls so far.
int file_faults_restart(void) { return atomic_exchange(&num_calls, 0); }

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int env_int(const char* name, int default_value) {
  const char* text = getenv(name);
  return text ? atoi(text) : default_value;
}

static int is_below(const char* path) {
  const char* below = getenv("FAULT_BELOW");
  size_t size = below ? strlen(below) : 0;
  if (!size || !path || strncmp(path, below, size) != 0) return 0;
  return path[size] == '/' || path[size] == 0;
}

static void log_call(const char* call, const char* path) {
  const char* log = getenv("FAULT_LOG");
  if (!log) return;
  char line[kPathSize + 64];
  int size = snprintf(line, sizeof(line), "%s %s\n", call, path);
  // Not by `open` and `write`, which are those of this file.
  long fd =
      syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (fd < 0) return;
  syscall(SYS_write, fd, line, size);
  syscall(SYS_close, fd);
}

__attribute__((noreturn)) static void die(void) {
  syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
  for (;;) pause();
}

// Counts a call; returns its fault, with errno set for kError.
static enum Fault next_fault(const char* call, const char* path) {
  int saved = errno;
  if (!is_below(path)) return kNone;
  int index = atomic_fetch_add(&num_calls, 1) + 1;
  int at = env_int("FAULT_AT", 0), count = env_int("FAULT_COUNT", 1);
  if (!at || index <= at) log_call(call, path);
  errno = saved;
  if (!at || index < at || (count && index >= at + count)) return kNone;
  const char* action = getenv("FAULT_ACTION");
  if (!action || !strcmp(action, "kill")) return kKill;
  if (!strcmp(action, "torn")) return kTorn;
  if (!strcmp(action, "short")) return kShort;
  if (!strcmp(action, "slow")) {
    usleep(kSlowMicroseconds);
    errno = saved;
    return kNone;
  }
  errno = atoi(action);
  return kError;
}

// Returns whether the call must fail; dies if its fault is a kill.
static int fails(const char* call, const char* path) {
  enum Fault fault = next_fault(call, path);
  if (fault == kKill || fault == kTorn) die();
  return fault == kError;
}

// Returns the absolute path of the arguments of an `*at` call; of a path below
// an open directory, `/proc/self/fd/3/name`, that below the directory's own.
static const char* join(int dir, const char* path, char* buffer) {
  ssize_t size;
  int opened, length = 0;
  if (sscanf(path, "/proc/self/fd/%d/%n", &opened, &length) == 1 && length) {
    dir = opened;
    path += length;
  }
  if (path[0] == '/') return path;
  if (dir == AT_FDCWD) {
    size = getcwd(buffer, PATH_MAX) ? (ssize_t)strlen(buffer) : -1;
  } else {
    char link[64];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", dir);
    size = readlink(link, buffer, PATH_MAX - 1);
  }
  if (size < 0) return path;
  snprintf(buffer + size, kPathSize - size, path[0] ? "/%s" : "%s", path);
  return buffer;
}

// Not inlined: a signal handler of Python writes to a pipe, on a stack that is
// smaller than the buffers.
__attribute__((noinline)) static enum Fault next_fault_of_file(const char* call,
                                                               int fd) {
  char buffer[kPathSize];
  int saved = errno;
  const char* path = join(fd, "", buffer);
  errno = saved;
  return next_fault(call, path);
}

static enum Fault next_fault_of(const char* call, int fd) {
  if (!getenv("FAULT_BELOW")) return kNone;
  int saved = errno;
  struct stat status;
  int is_pipe = !fstat(fd, &status) && S_ISFIFO(status.st_mode);
  errno = saved;
  return is_pipe ? kNone : next_fault_of_file(call, fd);
}

static int fails_fd(const char* call, int fd) {
  enum Fault fault = next_fault_of(call, fd);
  if (fault == kKill || fault == kTorn) die();
  return fault == kError;
}

#define DEFINE_OPEN(name)                            \
  int name(const char* path, int flags, ...) {       \
    char buffer[kPathSize];                          \
    va_list args;                                    \
    va_start(args, flags);                           \
    mode_t mode = va_arg(args, mode_t);              \
    va_end(args);                                    \
    if ((flags & (O_CREAT | O_TRUNC)) &&             \
        fails("open", join(AT_FDCWD, path, buffer))) \
      return -1;                                     \
    return REAL(name)(path, flags, mode);            \
  }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)

#define DEFINE_OPENAT(name)                             \
  int name(int dir, const char* path, int flags, ...) { \
    char buffer[kPathSize];                             \
    va_list args;                                       \
    va_start(args, flags);                              \
    mode_t mode = va_arg(args, mode_t);                 \
    va_end(args);                                       \
    if ((flags & (O_CREAT | O_TRUNC)) &&                \
        fails("open", join(dir, path, buffer)))         \
      return -1;                                        \
    return REAL(name)(dir, path, flags, mode);          \
  }
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)

// Defines a write of `size` (bytes or parts), with the faults of all writes.
#define DEFINE_WRITE(declaration, size, half, call) \
  declaration {                                     \
    switch (next_fault_of("write", fd)) {           \
      case kKill:                                   \
        die();                                      \
      case kError:                                  \
        return -1;                                  \
      case kTorn:                                   \
        size = half;                                \
        call;                                       \
        die();                                      \
      case kShort:                                  \
        size = half;                                \
        break;                                      \
      case kNone:                                   \
        break;                                      \
    }                                               \
    return call;                                    \
  }
DEFINE_WRITE(ssize_t write(int fd, const void* data, size_t size), size,
             (size + 1) / 2, REAL(write)(fd, data, size))
DEFINE_WRITE(ssize_t pwrite(int fd, const void* data, size_t size, off_t at),
             size, (size + 1) / 2, REAL(pwrite)(fd, data, size, at))
DEFINE_WRITE(ssize_t pwrite64(int fd, const void* data, size_t size,
                              off64_t at),
             size, (size + 1) / 2, REAL(pwrite64)(fd, data, size, at))
// Half of a single part is a `write`.
DEFINE_WRITE(ssize_t writev(int fd, const struct iovec* parts, int count),
             count, count / 2,
             count ? REAL(writev)(fd, parts, count)
                   : REAL(write)(fd, parts->iov_base, (parts->iov_len + 1) / 2))

int ftruncate(int fd, off_t size) {
  if (fails_fd("truncate", fd)) return -1;
  return REAL(ftruncate)(fd, size);
}

int ftruncate64(int fd, off64_t size) {
  if (fails_fd("truncate", fd)) return -1;
  return REAL(ftruncate64)(fd, size);
}

int fsync(int fd) {
  if (fails_fd("fsync", fd)) return -1;
  return REAL(fsync)(fd);
}

int fdatasync(int fd) {
  if (fails_fd("fsync", fd)) return -1;
  return REAL(fdatasync)(fd);
}

#define DEFINE_CALL(call, declaration, dir, path, real)  \
  declaration {                                          \
    char buffer[kPathSize];                              \
    if (fails(call, join(dir, path, buffer))) return -1; \
    return real;                                         \
  }
DEFINE_CALL("mkdir", int mkdir(const char* path, mode_t mode), AT_FDCWD, path,
            REAL(mkdir)(path, mode))
DEFINE_CALL("mkdir", int mkdirat(int dir, const char* path, mode_t mode), dir,
            path, REAL(mkdirat)(dir, path, mode))
DEFINE_CALL("unlink", int unlink(const char* path), AT_FDCWD, path,
            REAL(unlink)(path))
DEFINE_CALL("unlink", int unlinkat(int dir, const char* path, int flags), dir,
            path, REAL(unlinkat)(dir, path, flags))
DEFINE_CALL("rmdir", int rmdir(const char* path), AT_FDCWD, path,
            REAL(rmdir)(path))
DEFINE_CALL("rename", int rename(const char* from, const char* to), AT_FDCWD,
            to, REAL(rename)(from, to))
DEFINE_CALL("rename",
            int renameat(int from_dir, const char* from, int to_dir,
                         const char* to),
            to_dir, to, REAL(renameat)(from_dir, from, to_dir, to))
DEFINE_CALL("rename",
            int renameat2(int from_dir, const char* from, int to_dir,
                          const char* to, unsigned int flags),
            to_dir, to, REAL(renameat2)(from_dir, from, to_dir, to, flags))
