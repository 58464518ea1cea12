// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/own_descriptor.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

/// Shows which of the processes that share a tier live. Each process holds an open-file-description
/// lock on one byte of the tier's file. The kernel ends the lock with the process, however it died
/// and in any pid namespace. Zombies hold no lock, and recycled pids do not matter.
namespace kvferry::cpu_tier {

/// The offset of the lock bytes of an engine instance's processes, its members. It lies far beyond
/// the end of the file. A multiple of kMaxMembers.
using LockBase = std::uint64_t;

/// The scheduler is member 0, rank r member r + 1.
inline constexpr std::uint32_t kMaxMembers = 64;

/// The base of the instance with that name, which is unique on the node. The base is practically
/// random, and never 0.
[[nodiscard]] LockBase lock_base_of(std::string_view instance);
/// Whether some name can have this base. If not, another program wrote it.
[[nodiscard]] bool is_lock_base(std::uint64_t word);

/// Whether a member of the base lives, as seen on this open file at this moment. An instance that
/// is cleaning up there counts as a living member.
[[nodiscard]] bool has_living_member(int descriptor, LockBase base);

/// The file with the locks.
class LockFile {
 public:
  /// `descriptor`: the file, which its user keeps open for longer than this object lives. The path
  /// could lead to another file by now, in which every member would seem dead. Without a
  /// descriptor: the file at the path.
  LockFile(std::filesystem::path path, int descriptor = -1)
      : path_(std::move(path)), descriptor_(descriptor) {}

  /// Makes a separate open file description, because locks of the same description do not conflict.
  /// Throws ResourceError.
  [[nodiscard]] OwnDescriptor open_anew() const;
  /// For messages.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int descriptor_;
};

/// One process's lock on its byte, for the life of this object. Forked children do not have it.
class MemberLock {
 public:
  /// Throws ResourceError with the path if another process, or another MemberLock of this process,
  /// has the lock, or if another instance is just cleaning up after an instance of that name.
  MemberLock(const LockFile& file, LockBase base, std::uint32_t member);

  /// Takes the locks of all members, without releasing its own in between. Then it is the same
  /// proof as a DeathLock. Returns false and changes nothing if another member lives, or in a
  /// forked child.
  [[nodiscard]] bool try_take_all() const;

 private:
  OwnDescriptor file_;
  LockBase base_;
};

/// Proof that no member of an instance lives, and that none can start while this object lives.
class DeathLock {
 public:
  /// Returns nothing if a member lives, or if another process has the locks to clean up. Throws
  /// ResourceError if the file cannot be opened.
  [[nodiscard]] static std::optional<DeathLock> try_take(const LockFile& file, LockBase base);

 private:
  explicit DeathLock(OwnDescriptor file) : file_(std::move(file)) {}
  OwnDescriptor file_;
};

}  // namespace kvferry::cpu_tier
