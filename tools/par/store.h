// SPDX-License-Identifier: Apache-2.0
// The folder of a user's unpacked .par files: STORE/HASH, locked by
// STORE/HASH.lock as long as a process runs there, and STORE/HASH.PID while
// process PID unpacks.
#pragma once

#include <string>

namespace par {

[[noreturn]] void Die(const std::string& what);

void MakeFolders(const std::string& path);

// Deletes a file or folder; does not follow links.
void RemoveTree(const std::string& path);

bool Exists(const std::string& path);

// Returns the store, which only this user may write to; makes it.
std::string OpenStore();

// A lock of an unpacked .par. Programs that this process executes inherit it.
class Lock {
 public:
  explicit Lock(const std::string& root) : path_(root + ".lock") {}
  Lock(const Lock&) = delete;
  ~Lock();

  // Waits for the lock: LOCK_SH to run, LOCK_EX to unpack. Returns false after
  // a signal. Where nothing can be locked, nothing is pruned.
  bool Take(int kind);
  bool supported() const { return supported_; }
  // Marks the folder as the one that was started last.
  void Touch();

 private:
  // Whether the file still has the path: Prune deletes it.
  bool IsCurrent() const;

  const std::string path_;
  int fd_ = -1;
  bool supported_ = true;
};

// Deletes what processes that were killed left of `root`, which is locked.
void RemoveLeftovers(const std::string& root);

// Deletes all but the last started folders and those in use. The lock of
// `root` is held.
void Prune(const std::string& root);

}  // namespace par
