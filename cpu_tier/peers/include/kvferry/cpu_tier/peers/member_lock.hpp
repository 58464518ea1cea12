// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/own_descriptor.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

/// Which of the processes that share a tier live: each holds an open-file-description lock on a
/// byte of the tier's file, which the kernel ends with the process, whatever killed it and in
/// whatever pid namespace it was. Zombies hold none, and a recycled pid means nothing.
namespace kvferry::cpu_tier {

/// The bytes of an engine instance's processes, its members: far beyond what a file holds. A
/// multiple of kMaxMembers.
using LockBase = std::uint64_t;

/// The scheduler is member 0, rank r member r + 1.
inline constexpr std::uint32_t kMaxMembers = 64;

/// Of the instance with that name, unique on the node: as good as random, and never 0.
[[nodiscard]] LockBase lock_base_of(std::string_view instance);
/// Whether some name can have it. Others are what another program wrote.
[[nodiscard]] bool is_lock_base(std::uint64_t word);

/// Whether a member lives, as far as a look can tell, of those of the open file. A sweeper that is
/// at work there counts as one.
[[nodiscard]] bool has_living_member(int descriptor, LockBase base);

/// The file that the locks are on.
class LockFile {
 public:
  /// `descriptor`: the file as its user has it open for longer than this; the path may lead to
  /// another one by now, where every member would seem to be dead. None: what the path leads to.
  LockFile(std::filesystem::path path, int descriptor = -1)
      : path_(std::move(path)), descriptor_(descriptor) {}

  /// A file description of its own: locks of one do not meet each other. Throws ResourceError.
  [[nodiscard]] OwnDescriptor open_anew() const;
  /// For people.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int descriptor_;
};

/// One process's lock on its byte, for as long as this lives. Not in forked children.
class MemberLock {
 public:
  /// Throws ResourceError if another process, or another MemberLock of this one, has it, or if a
  /// sweeper has just begun to clean up behind an instance of that name; naming the path.
  MemberLock(const LockFile& file, LockBase base, std::uint32_t member);

  /// Takes the locks of all members, without a moment in which this one's is free: then it is proof
  /// as a DeathLock is. False, and as before, if another member lives; and in a forked child.
  [[nodiscard]] bool try_take_all() const;

 private:
  OwnDescriptor file_;
  LockBase base_;
};

/// Proof that no member of an instance lives, and that none appears for as long as this lives.
class DeathLock {
 public:
  /// Nothing if a member lives, or another sweeper has it. Throws ResourceError if the file cannot
  /// be opened.
  [[nodiscard]] static std::optional<DeathLock> try_take(const LockFile& file, LockBase base);

 private:
  explicit DeathLock(OwnDescriptor file) : file_(std::move(file)) {}
  OwnDescriptor file_;
};

}  // namespace kvferry::cpu_tier
