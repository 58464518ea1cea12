// SPDX-License-Identifier: Apache-2.0
#include "path_model.hpp"

#include <algorithm>

namespace kvferry::transfer {
namespace {

using gpu::CopyDirection;
using gpu::CopyPath;
using gpu::DeviceFamily;

// Seconds, and bytes per second. Measured on an H100 (bench/RESULTS.md): 49-55 GB/s on PCIe 5 x16,
// 0.87 to 0.97 us per batch descriptor. Elsewhere 4-7 us per call, 0.6-1.1 us per descriptor
// (docs/decisions/transfer.md).
constexpr double kCallSeconds = 5e-6;
constexpr double kDescriptorSeconds = 0.9e-6;
constexpr double kGapSeconds = 0.2e-6;  ///< Between two descriptors of a batch, on the link.
constexpr double kLaunchSeconds = 6e-6;
// A kernel that reads host memory has 0.85 of the link on an idle H100, and half of it or less on a
// busy one, which it slows by 18 %. These constants put it behind staging.
constexpr double kKernelShare = 0.82;              ///< Share of the link's rate, with large runs.
constexpr double kKernelHalfBytes = 8.0 * 1024.0;  ///< Size of a run at half of that share.
// On an idle H100 0.97 and more. It is below the share of the batch call from 64 KiB on, which
// takes no multiprocessor: beside arithmetic that had 48 GB/s and staging 46, and the arithmetic
// was slowed by 0.1 and by 7 %.
constexpr double kStagedShare = 0.85;
// vllm#42212: the batch call to an H100 drops to 4-7 GB/s below 28 KiB. Measured: 6.0 to 7.5 with
// 8 KiB, 9 with 16 KiB, 33 with 32 KiB.
constexpr double kSmallBatchBytes = 28.0 * 1024.0;
constexpr double kSmallBatchRate = 6e9;
// sglang#31741: single calls of HIP give 2.2 GB/s for 16 KiB, and its batch call is not faster.
constexpr double kHipCallSeconds = 7e-6;

double batch_seconds(DeviceFamily family, const CopyShape& shape, double run_bytes, double link) {
  const auto runs = static_cast<double>(shape.num_runs);
  if (family == DeviceFamily::kHip) return runs * (1.1 * kHipCallSeconds + run_bytes / link);
  const double on_link = kGapSeconds + run_bytes / link;
  double seconds = kCallSeconds + runs * std::max(kDescriptorSeconds, on_link);
  if (shape.direction == CopyDirection::kHostToDevice && run_bytes < kSmallBatchBytes) {
    seconds = std::max(seconds, runs * run_bytes / kSmallBatchRate);
  }
  return seconds;
}

double seconds_of(DeviceFamily family, CopyPath path, const CopyShape& shape) {
  const auto runs = static_cast<double>(shape.num_runs);
  const auto bytes = static_cast<double>(shape.total_bytes);
  const double run_bytes = bytes / runs;
  const double link = link_rate(family);
  switch (path) {
    case CopyPath::kPerRun:
      return runs *
             ((family == DeviceFamily::kHip ? kHipCallSeconds : kCallSeconds) + run_bytes / link);
    case CopyPath::kBatch:
      return batch_seconds(family, shape, run_bytes, link);
    case CopyPath::kKernel:
      return kLaunchSeconds +
             bytes / (kKernelShare * link * run_bytes / (run_bytes + kKernelHalfBytes));
    case CopyPath::kStaged:
      return kCallSeconds + kLaunchSeconds + bytes / (kStagedShare * link);
  }
  return 1;
}

/// Host memory has no link. All paths that move the bytes once are alike; staging moves them twice.
double host_rate(CopyPath path, const CopyShape& shape) {
  switch (path) {
    case CopyPath::kBatch:
      return shape.num_runs < 2 ? 9e9 : 10e9;
    case CopyPath::kPerRun:
      return shape.num_runs < 2 ? 10e9 : 9e9;
    case CopyPath::kKernel:
      return 8e9;
    case CopyPath::kStaged:
      return 4e9;
  }
  return 1;
}

}  // namespace

double link_rate(DeviceFamily family) { return family == DeviceFamily::kCudaOlder ? 25e9 : 53e9; }

double default_rate(DeviceFamily family, CopyPath path, const CopyShape& shape) {
  if (family == DeviceFamily::kHost) return host_rate(path, shape);
  return static_cast<double>(shape.total_bytes) / seconds_of(family, path, shape);
}

}  // namespace kvferry::transfer
