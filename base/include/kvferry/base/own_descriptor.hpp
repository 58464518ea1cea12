// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <sys/types.h>
#include <type_traits>

namespace kvferry {

/// An open file of this process alone: closed by its destructor, on exec, and in forked children,
/// where a copy of it would keep the locks of a parent that is gone. A fork at any moment leaves
/// the child no copy, because none falls between the opening of a file and its being known here
/// (without_forks.hpp). Its locks (flock, open file descriptions') end with it, also where
/// something else has a copy of it after all.
///
/// Move-only. Making and closing are thread-safe; one is used by one thread at a time.
class OwnDescriptor {
 public:
  /// None.
  OwnDescriptor() = default;
  /// open(2); O_CLOEXEC is added. None, with errno, if that fails. Throws as opened_by().
  [[nodiscard]] static OwnDescriptor open(const char* path, int flags, mode_t mode = 0);
  /// The same by any call that makes a descriptor which exec closes. `call` returns it, or a
  /// negative value with errno; it runs in a section without forks, and keeps that section's rules.
  /// Throws ResourceError, with nothing left open, if kMost are open already.
  template <class Call>
  [[nodiscard]] static OwnDescriptor opened_by(Call&& call) {
    using Plain = std::remove_reference_t<Call>;
    return OwnDescriptor([](void* context) { return (*static_cast<Plain*>(context))(); },
                         std::addressof(call));
  }
  ~OwnDescriptor();
  OwnDescriptor(OwnDescriptor&& other) noexcept;
  OwnDescriptor& operator=(OwnDescriptor&& other) noexcept;

  /// Open at a time in one process: of tiers and their locks, a few each.
  static constexpr std::uint32_t kMost = 256;

  /// Negative if there is none, and in a forked child.
  [[nodiscard]] int get() const;
  explicit operator bool() const { return get() >= 0; }

 private:
  using Opener = int (*)(void* context);
  OwnDescriptor(Opener opener, void* context);

  static constexpr std::uint32_t kNoEntry = kMost;
  std::uint32_t entry_ = kNoEntry;
};

}  // namespace kvferry
