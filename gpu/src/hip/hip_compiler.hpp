// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "driver/shared_library.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::gpu {

/// hipRTC, for architectures that the build's hipcc did not know. Looked for when it is needed: in
/// `runtime`, where ROCm once had it, among the libraries that the process has loaded, and by the
/// sonames of its own library.
class HipCompiler {
 public:
  explicit HipCompiler(const SharedLibrary& runtime);

  /// Code object of `source` for `architecture` ("gfx942"). Throws DeviceError with the first line
  /// of the compiler's log, or saying that there is no compiler.
  [[nodiscard]] std::vector<std::byte> compile(std::string_view source,
                                               const std::string& architecture) const;

 private:
  template <class Function>
  [[nodiscard]] Function function(const char* name) const;
  [[nodiscard]] std::string log_of(void* program) const;

  std::optional<SharedLibrary> library_;
};

}  // namespace kvferry::gpu
