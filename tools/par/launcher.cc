// SPDX-License-Identifier: Apache-2.0
// Launcher of a .par file: unpacks the archive once, then runs the program.
//
// A .par consists of this program, a tar (interpreter and what the second stage
// imports), frames (everything else, which the second stage unpacks) and the
// Trailer. It unpacks to a folder named by the hash of its content, so the next
// start only execs. Linked statically: the target machine may lack a libc.
#include <fcntl.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tools/par/store.h"

namespace {

using par::Die;

// The last bytes of the file; tools/par/make_par.py writes it.
struct Trailer {
  char magic[8];
  char hash[64];
  char tar_offset[20];
  char tar_size[20];
};

struct TarHeader {
  char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8];
  char type, link[100], magic[6], version[2], user[32], group[32], major[8];
  char minor[8], prefix[155], padding[12];
};
static_assert(sizeof(TarHeader) == 512);

constexpr char kMagic[] = "PAXPAR1\n";

// EX_TEMPFAIL, as pax/exit_codes.py.
constexpr int kPreempted = 75;
constexpr int kSignals[] = {SIGTERM, SIGINT, SIGHUP};

// The signal that ends the launcher, and the second stage, while it unpacks.
volatile sig_atomic_t stop_signal = 0;
volatile sig_atomic_t second_stage = 0;

void OnSignal(int number) {
  stop_signal = number;
  if (second_stage > 0) kill(second_stage, SIGKILL);
}

// Sets the handler of all signals that are not ignored, as under nohup.
void HandleSignals(void (*handler)(int)) {
  for (const int number : kSignals) {
    struct sigaction action = {};
    sigaction(number, nullptr, &action);
    if (action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = handler;
    sigaction(number, &action, nullptr);
  }
}

int OpenSelf(std::string* path) {
  char target[4096];
  const ssize_t n = readlink("/proc/self/exe", target, sizeof(target) - 1);
  // Without /proc, the name passed to the kernel.
  *path = n > 0 ? std::string(target, n)
                : reinterpret_cast<const char*>(getauxval(AT_EXECFN));
  const int fd = open(path->c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) Die("cannot open " + *path);
  return fd;
}

void ReadAll(int fd, void* to, size_t size, off_t at) {
  for (size_t done = 0; done < size;) {
    const ssize_t n = pread(fd, static_cast<char*>(to) + done, size - done,
                            at + static_cast<off_t>(done));
    if (n <= 0) Die("the file is cut short");
    done += n;
  }
}

Trailer ReadTrailer(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) Die("stat");
  Trailer trailer;
  ReadAll(fd, &trailer, sizeof(trailer), info.st_size - sizeof(trailer));
  errno = 0;
  if (memcmp(trailer.magic, kMagic, sizeof(trailer.magic)) != 0) {
    Die("the file is damaged");
  }
  return trailer;
}

void WriteFile(int fd, off_t at, size_t size, const std::string& path,
               mode_t mode) {
  const int out =
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
  if (out < 0) Die(path);
  std::vector<char> buffer(1 << 20);
  while (size > 0) {
    const size_t part = std::min(size, buffer.size());
    ReadAll(fd, buffer.data(), part, at);
    if (write(out, buffer.data(), part) != static_cast<ssize_t>(part))
      Die(path);
    at += part;
    size -= part;
  }
  if (close(out) != 0) Die(path);
}

void Untar(int fd, off_t at, off_t size, const std::string& dest) {
  for (const off_t end = at + size; at < end;) {
    TarHeader header;
    ReadAll(fd, &header, sizeof(header), at);
    at += sizeof(header);
    if (header.name[0] == '\0') return;
    if (stop_signal != 0) return;
    const std::string prefix(header.prefix, strnlen(header.prefix, 155));
    const std::string name(header.name, strnlen(header.name, 100));
    const std::string path =
        dest + "/" + (prefix.empty() ? name : prefix + "/" + name);
    const size_t bytes =
        strtoull(std::string(header.size, 12).c_str(), nullptr, 8);
    const mode_t mode =
        strtoul(std::string(header.mode, 8).c_str(), nullptr, 8);
    par::MakeFolders(path.substr(0, path.rfind('/')));
    WriteFile(fd, at, bytes, path, mode);
    at += (bytes + 511) / 512 * 512;
  }
}

void Exec(const std::string& root, const std::vector<std::string>& args) {
  std::vector<std::string> all = {root + "/bin/python3", "-I"};
  all.insert(all.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (auto& arg : all) argv.push_back(arg.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  Die("cannot run " + all[0]);
}

// Deletes what was unpacked and exits, if there was a signal.
void ExitIfStopped(const std::string& part) {
  if (stop_signal == 0) return;
  par::RemoveTree(part);
  const char* name = stop_signal == SIGINT   ? "Ctrl-C"
                     : stop_signal == SIGHUP ? "SIGHUP"
                                             : "SIGTERM";
  fprintf(stderr, "pax: %s: stopped before the first step; nothing was lost\n",
          name);
  exit(kPreempted);
}

int64_t Number(const char (&digits)[20]) {
  return strtoll(std::string(digits, 20).c_str(), nullptr, 10);
}

// Runs the second stage; returns its status.
int RunSecondStage(const std::string& self, int64_t frames,
                   const std::string& part) {
  const pid_t child = fork();
  if (child < 0) Die("fork");
  if (child == 0) {
    Exec(part, {part + "/unpack.py", self, std::to_string(frames), part});
  }
  second_stage = child;
  if (stop_signal != 0) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) Die("wait");
  }
  second_stage = 0;
  return status;
}

// Unpacks to `root` atomically.
void Unpack(int fd, const std::string& self, const Trailer& trailer,
            const std::string& root) {
  const std::string part = root + "." + std::to_string(getpid());
  const int64_t tar = Number(trailer.tar_offset);
  const int64_t size = Number(trailer.tar_size);
  Untar(fd, tar, size, part);
  ExitIfStopped(part);
  const int status = RunSecondStage(self, tar + size, part);
  ExitIfStopped(part);
  if (status != 0) {
    par::RemoveTree(part);
    errno = EIO;
    Die("could not unpack to " + root + " (set PAX_PAR_DIR to another folder)");
  }
  if (rename(part.c_str(), root.c_str()) != 0) {
    if (errno != EEXIST && errno != ENOTEMPTY) Die("cannot create " + root);
    par::RemoveTree(part);  // Without locks, another process was first.
  }
}

// Unpacks to `root` unless another process does it first.
void UnpackOnce(int fd, const std::string& self, const Trailer& trailer,
                const std::string& root) {
  HandleSignals(OnSignal);
  par::Lock lock(root);
  if (!lock.Take(LOCK_EX)) ExitIfStopped("");
  if (!par::Exists(root)) {
    if (lock.supported()) par::RemoveLeftovers(root);
    Unpack(fd, self, trailer, root);
    if (lock.supported()) par::Prune(root);
  }
  HandleSignals(SIG_DFL);
}

}  // namespace

int main(int argc, char** argv) {
  std::string self;
  const int fd = OpenSelf(&self);
  const Trailer trailer = ReadTrailer(fd);
  const std::string hash(trailer.hash, 32);
  const std::string root = par::OpenStore() + "/" + hash;
  par::Lock lock(root);
  do {
    if (!par::Exists(root)) UnpackOnce(fd, self, trailer, root);
    lock.Take(LOCK_SH);
  } while (!par::Exists(root));  // Pruned before it was locked.
  lock.Touch();
  setenv("PAX_PAR", self.c_str(), 1);
  std::vector<std::string> args = {root + "/main.py"};
  args.insert(args.end(), argv + 1, argv + argc);
  Exec(root, args);
}
