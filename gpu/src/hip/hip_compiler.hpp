// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "driver/shared_library.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::gpu {

/// hipRTC, for architectures that the build's hipcc did not know. It is looked for when it is
/// needed: in `runtime`, which had it in older ROCm, among the libraries that the process has
/// loaded, and by the sonames of its own library.
class HipCompiler {
 public:
  explicit HipCompiler(const SharedLibrary& runtime);

  /// Compiles `source` to a code object for `architecture` ("gfx942"). Throws DeviceError with the
  /// first line of the compiler's log, or with the reason why there is no compiler.
  [[nodiscard]] std::vector<std::byte> compile(std::string_view source,
                                               const std::string& architecture) const;

 private:
  template <class Function>
  [[nodiscard]] Function function(const char* name) const;
  [[nodiscard]] std::string log_of(void* program) const;

  std::optional<SharedLibrary> library_;
};

}  // namespace kvferry::gpu
