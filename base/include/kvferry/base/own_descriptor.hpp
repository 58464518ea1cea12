// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvferry {

/// An open file of this process alone: closed by its destructor, on exec, and in forked children,
/// where a copy of it would keep the locks of a parent that is gone. Move-only. Making and closing
/// are thread-safe; one is used by one thread at a time.
class OwnDescriptor {
 public:
  /// None.
  OwnDescriptor() = default;
  /// Takes a descriptor over, at the moment of an open() with O_CLOEXEC; a negative one is none.
  /// Throws ResourceError, with the descriptor closed, if kMost are open already.
  explicit OwnDescriptor(int descriptor);
  ~OwnDescriptor();
  OwnDescriptor(OwnDescriptor&& other) noexcept;
  OwnDescriptor& operator=(OwnDescriptor&& other) noexcept;

  /// Open at a time in one process: of tiers and their locks, a few each.
  static constexpr std::uint32_t kMost = 256;

  /// Negative if there is none, and in a forked child.
  [[nodiscard]] int get() const;
  explicit operator bool() const { return get() >= 0; }

 private:
  static constexpr std::uint32_t kNoEntry = kMost;
  std::uint32_t entry_ = kNoEntry;
};

}  // namespace kvferry
