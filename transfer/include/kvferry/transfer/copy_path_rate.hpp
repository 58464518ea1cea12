// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/copy_path.hpp"
#include "kvferry/gpu/device.hpp"

#include <cstdint>
#include <vector>

namespace kvferry::transfer {

/// How fast one way across the link is for one class of pieces. A run is what one copy would move
/// without packing: a fragment of a load, a stretch of whole slots of a store.
struct CopyPathRate {
  gpu::CopyDirection direction = gpu::CopyDirection::kHostToDevice;
  gpu::CopyPath path = gpu::CopyPath::kPerRun;
  /// Least mean bytes of a run in the class; the next power of two begins the next. A figure in
  /// between names the class that it lies in.
  std::uint64_t run_bytes = 0;
  /// Least number of runs of a piece in the class: 1, 2, 16 or 256. Likewise.
  std::uint64_t num_runs = 1;
  /// Bytes of the piece over the time that the link, or the slower stage, was taken by it.
  double bytes_per_second = 0;
  bool operator==(const CopyPathRate&) const = default;
};

/// Measured rates, in no particular order; what is missing keeps its default.
using CopyPathTable = std::vector<CopyPathRate>;

}  // namespace kvferry::transfer
