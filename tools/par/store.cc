// SPDX-License-Identifier: Apache-2.0
#include "tools/par/store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

namespace par {
namespace {

namespace fs = std::filesystem;

// Folders that Prune leaves: room for a few programs that run in turns.
constexpr size_t kKept = 3;
constexpr char kLock[] = ".lock";

std::string Env(const char* name) {
  const char* value = getenv(name);
  return value != nullptr ? value : "";
}

std::string StorePath() {
  if (const auto dir = Env("PAX_PAR_DIR"); !dir.empty()) return dir;
  if (const auto dir = Env("XDG_CACHE_HOME"); !dir.empty()) {
    return dir + "/pax-par";
  }
  if (const auto dir = Env("HOME");
      !dir.empty() && access(dir.c_str(), W_OK) == 0) {
    return dir + "/.cache/pax-par";
  }
  const auto tmp = Env("TMPDIR");
  return (tmp.empty() ? "/tmp" : tmp) + "/pax-par-" + std::to_string(getuid());
}

bool IsLock(const fs::path& path) { return path.extension() == kLock; }

// Deletes HASH and all of HASH.*, the lock last. A folder gets another name
// first: what remains of it if this process is killed does not look whole.
void RemoveAll(const fs::path& root) {
  const std::string away = root.string() + "." + std::to_string(getpid());
  rename(root.c_str(), away.c_str());
  RemoveLeftovers(root);
  unlink((root.string() + kLock).c_str());
}

// Returns the locks of other folders than `root`, the last used first.
std::vector<fs::path> Others(const fs::path& root) {
  std::vector<std::pair<fs::file_time_type, fs::path>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root.parent_path(), error)) {
    if (IsLock(entry.path()) && entry.path().stem() != root.filename()) {
      found.emplace_back(entry.last_write_time(error), entry.path());
    }
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<fs::path> paths;
  for (const auto& [_, path] : found) paths.push_back(path);
  return paths;
}

}  // namespace

void Die(const std::string& what) {
  fprintf(stderr, "par: %s: %s\n", what.c_str(), strerror(errno));
  exit(126);
}

void MakeFolders(const std::string& path) {
  for (size_t at = 1; at != std::string::npos;) {
    at = path.find('/', at);
    const std::string part = path.substr(0, at);
    if (mkdir(part.c_str(), 0755) != 0 && errno != EEXIST) Die(part);
    if (at != std::string::npos) ++at;
  }
}

void RemoveTree(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

std::string OpenStore() {
  const std::string store = StorePath();
  MakeFolders(store);
  // No other user may write to the folder that holds the code.
  struct stat info;
  if (lstat(store.c_str(), &info) != 0) Die(store);
  errno = EPERM;
  if (info.st_uid != getuid() || (info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    Die(store +
        " can be written by others; set PAX_PAR_DIR to a folder of yours");
  }
  return store;
}

Lock::~Lock() {
  if (fd_ >= 0) close(fd_);
}

bool Lock::Take(int kind) {
  do {
    if (fd_ >= 0) close(fd_);
    // Without O_CLOEXEC: the program keeps the lock.
    fd_ = open(path_.c_str(), O_RDWR | O_CREAT, 0600);
    if (fd_ < 0 || flock(fd_, kind) != 0) {
      if (fd_ >= 0 && errno == EINTR) return false;
      supported_ = false;
      return true;
    }
  } while (!IsCurrent());
  return true;
}

bool Lock::IsCurrent() const {
  struct stat here, there;
  return fstat(fd_, &here) == 0 && stat(path_.c_str(), &there) == 0 &&
         here.st_ino == there.st_ino;
}

void Lock::Touch() { futimens(fd_, nullptr); }

void RemoveLeftovers(const std::string& root) {
  const fs::path path(root);
  const std::string start = path.filename().string() + ".";
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path.parent_path(), error)) {
    const std::string name = entry.path().filename();
    if (name.compare(0, start.size(), start) == 0 && !IsLock(name)) {
      found.push_back(entry.path());
    }
  }
  for (const auto& leftover : found) RemoveTree(leftover);
}

void Prune(const std::string& root) {
  size_t kept = 1;
  for (fs::path other : Others(root)) {
    const int fd = open(other.c_str(), O_RDWR | O_CLOEXEC);
    other.replace_extension();
    if (!Exists(other) || ++kept > kKept) {
      if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) RemoveAll(other);
    }
    if (fd >= 0) close(fd);
  }
}

}  // namespace par
