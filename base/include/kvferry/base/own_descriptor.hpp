// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <sys/types.h>
#include <type_traits>

namespace kvferry {

/// A file that is open in this process only. It is closed by its destructor, on exec, and in forked
/// children, where a copy would keep the locks of a parent that is gone. No child gets a copy,
/// whenever the process forks: opening a file and registering it here happen in one section without
/// forks (without_forks.hpp). Its locks (flock and open-file-description locks) end with it, even
/// if a copy of the descriptor exists elsewhere.
///
/// Move-only. Opening and closing are thread-safe; each object is used by one thread at a time.
class OwnDescriptor {
 public:
  /// None.
  OwnDescriptor() = default;
  /// Calls open(2) with O_CLOEXEC added. If that fails, the result holds no descriptor and errno is
  /// set. Throws as opened_by().
  [[nodiscard]] static OwnDescriptor open(const char* path, int flags, mode_t mode = 0);
  /// The same with any call that makes a close-on-exec descriptor. `call` returns the descriptor,
  /// or a negative value with errno. It runs in a section without forks and must follow that
  /// section's rules. Throws ResourceError, with nothing left open, if kMost descriptors are open
  /// already.
  template <class Call>
  [[nodiscard]] static OwnDescriptor opened_by(Call&& call) {
    using Plain = std::remove_reference_t<Call>;
    return OwnDescriptor([](void* context) { return (*static_cast<Plain*>(context))(); },
                         std::addressof(call));
  }
  ~OwnDescriptor();
  OwnDescriptor(OwnDescriptor&& other) noexcept;
  OwnDescriptor& operator=(OwnDescriptor&& other) noexcept;

  /// Most that can be open in one process at a time. Each tier and its locks need a few.
  static constexpr std::uint32_t kMost = 256;

  /// Negative if there is no descriptor, and for an object from before the fork in a forked child.
  [[nodiscard]] int get() const;
  explicit operator bool() const { return get() >= 0; }

 private:
  using Opener = int (*)(void* context);
  OwnDescriptor(Opener opener, void* context);

  static constexpr std::uint32_t kNoEntry = kMost;
  std::uint32_t entry_ = kNoEntry;
};

}  // namespace kvferry
