// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace kvferry::gpu {

/// How a set of fragments crosses the link. The code in transfer/ chooses the path.
enum class CopyPath : std::uint8_t {
  /// One asynchronous copy call per run.
  kPerRun,
  /// The driver's batch call.
  kBatch,
  /// A kernel that reads or writes host memory itself.
  kKernel,
  /// Fragments are packed in device memory by gather or scatter, and cross the link in large
  /// pieces.
  kStaged
};
[[nodiscard]] const char* to_string(CopyPath path);
/// The inverse of to_string(). Throws ConfigError that lists the names.
[[nodiscard]] CopyPath copy_path_from(std::string_view name);

}  // namespace kvferry::gpu
