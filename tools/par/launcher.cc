// SPDX-License-Identifier: Apache-2.0
// Launcher of a .par file: unpacks the archive once, then runs the program.
//
// A .par consists of this program, a tar (interpreter, standard library, second
// stage) and a zip (everything else) whose comment is the Trailer. It unpacks
// to a folder named by the hash of its content, so the next start only execs.
// Linked statically: the target machine may lack a libc.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/auxv.h>
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

namespace {

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

[[noreturn]] void Die(const std::string& what) {
  fprintf(stderr, "par: %s: %s\n", what.c_str(), strerror(errno));
  exit(126);
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

void MakeFolders(const std::string& path) {
  for (size_t at = 1; at != std::string::npos;) {
    at = path.find('/', at);
    const std::string part = path.substr(0, at);
    if (mkdir(part.c_str(), 0755) != 0 && errno != EEXIST) Die(part);
    if (at != std::string::npos) ++at;
  }
}

// Folder of all unpacked .par files of this user.
std::string Store() {
  const auto env = [](const char* name) -> std::string {
    const char* value = getenv(name);
    return value != nullptr ? value : "";
  };
  if (const auto dir = env("PAX_PAR_DIR"); !dir.empty()) return dir;
  if (const auto dir = env("XDG_CACHE_HOME"); !dir.empty()) {
    return dir + "/pax-par";
  }
  if (const auto dir = env("HOME");
      !dir.empty() && access(dir.c_str(), W_OK) == 0) {
    return dir + "/.cache/pax-par";
  }
  const auto tmp = env("TMPDIR");
  return (tmp.empty() ? "/tmp" : tmp) + "/pax-par-" + std::to_string(getuid());
}

// No other user may write to the folder that holds the code.
void CheckOwned(const std::string& store) {
  struct stat info;
  if (lstat(store.c_str(), &info) != 0) Die(store);
  errno = EPERM;
  if (info.st_uid != getuid() || (info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    Die(store +
        " can be written by others; set PAX_PAR_DIR to a folder of yours");
  }
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
    MakeFolders(path.substr(0, path.rfind('/')));
    WriteFile(fd, at, bytes, path, mode);
    at += (bytes + 511) / 512 * 512;
  }
}

void RemoveTree(const std::string& path) {
  if (DIR* dir = opendir(path.c_str())) {
    while (const dirent* entry = readdir(dir)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") RemoveTree(path + "/" + name);
    }
    closedir(dir);
  }
  remove(path.c_str());
}

void Exec(const std::string& root, const std::vector<std::string>& args) {
  const char* old = getenv("LD_LIBRARY_PATH");
  const std::string lib = root + "/lib";
  setenv("LD_LIBRARY_PATH",
         old != nullptr && *old ? (lib + ":" + old).c_str() : lib.c_str(), 1);
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
  RemoveTree(part);
  const char* name = stop_signal == SIGINT   ? "Ctrl-C"
                     : stop_signal == SIGHUP ? "SIGHUP"
                                             : "SIGTERM";
  fprintf(stderr, "pax: %s: stopped before the first step; nothing was lost\n",
          name);
  exit(kPreempted);
}

// Unpacks to `root` atomically; concurrent launchers are allowed.
void Unpack(int fd, const std::string& self, const Trailer& trailer,
            const std::string& root) {
  const std::string part = root + "." + std::to_string(getpid());
  HandleSignals(OnSignal);
  Untar(fd, strtoll(std::string(trailer.tar_offset, 20).c_str(), nullptr, 10),
        strtoll(std::string(trailer.tar_size, 20).c_str(), nullptr, 10), part);
  ExitIfStopped(part);
  const pid_t child = fork();
  if (child < 0) Die("fork");
  if (child == 0) Exec(part, {part + "/unpack.py", self, part});
  second_stage = child;
  if (stop_signal != 0) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) Die("wait");
  }
  second_stage = 0;
  HandleSignals(SIG_DFL);
  ExitIfStopped(part);
  if (status != 0) {
    RemoveTree(part);
    errno = EIO;
    Die("could not unpack to " + root + " (set PAX_PAR_DIR to another folder)");
  }
  if (rename(part.c_str(), root.c_str()) != 0) {
    if (errno != EEXIST && errno != ENOTEMPTY) Die("cannot create " + root);
    RemoveTree(part);  // Another process was first.
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string self;
  const int fd = OpenSelf(&self);
  const Trailer trailer = ReadTrailer(fd);
  const std::string store = Store();
  MakeFolders(store);
  CheckOwned(store);
  const std::string root = store + "/" + std::string(trailer.hash, 32);
  if (access(root.c_str(), F_OK) != 0) Unpack(fd, self, trailer, root);
  setenv("PAX_PAR", self.c_str(), 1);
  std::vector<std::string> args = {root + "/main.py"};
  args.insert(args.end(), argv + 1, argv + argc);
  Exec(root, args);
}
