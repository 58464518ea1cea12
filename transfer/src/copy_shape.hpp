// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/copy_path.hpp"
#include "kvferry/gpu/device.hpp"

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace kvferry::transfer {

/// What the choice of a path depends on: a piece's copies without packing.
struct CopyShape {
  gpu::CopyDirection direction = gpu::CopyDirection::kDeviceToHost;
  std::size_t num_runs = 0;
  std::uint64_t total_bytes = 0;
  /// A scatter would check these blocks as fast as copies move them without a check.
  bool is_best_scattered = false;
};

/// The paths that a piece can take.
class CopyPaths {
 public:
  CopyPaths(std::initializer_list<gpu::CopyPath> paths) {
    for (const gpu::CopyPath path : paths) add(path);
  }
  void add(gpu::CopyPath path) { bits_ |= bit(path); }
  void remove(gpu::CopyPath path) { bits_ &= ~bit(path); }
  [[nodiscard]] bool has(gpu::CopyPath path) const { return (bits_ & bit(path)) != 0; }

 private:
  static unsigned bit(gpu::CopyPath path) { return 1U << static_cast<unsigned>(path); }
  unsigned bits_ = 0;
};

}  // namespace kvferry::transfer
