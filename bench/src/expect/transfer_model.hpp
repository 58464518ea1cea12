// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/co_run_launcher.hpp"
#include "kvferry/gpu/copy_path.hpp"

#include "expect/device_profile.hpp"

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

/// Computes how fast a transfer should be. Its bytes flow through stages that work at the same
/// time: the thread that submits, the copy engine with the link, and the kernel that packs or
/// unpacks. The slowest stage sets the rate.
namespace kvferry::bench {

/// The work of one direction. All sizes are at least 1.
struct LaneWork {
  gpu::CopyDirection direction = gpu::CopyDirection::kHostToDevice;
  gpu::CopyPath path = gpu::CopyPath::kPerRun;
  std::uint64_t bytes = 0;           ///< All bytes that are timed together.
  std::uint64_t fragment_bytes = 0;  ///< Contiguous bytes on the device, which a kernel moves.
  std::uint64_t run_bytes = 0;       ///< Bytes of one copy, or of one entry of a batch call.
  std::uint64_t piece_bytes = 0;     ///< Bytes of one batch call, launch or staged piece.
  /// kStaged: bytes that are packed before the first copy, or unpacked after the last one.
  std::uint64_t fill_bytes = 0;
  double limit_gb_per_s = std::numeric_limits<double>::infinity();
  /// With other work: at most `window_bytes` bytes are under way at once, in units that are freed
  /// as a whole.
  double window_bytes = std::numeric_limits<double>::infinity();
  double unit_bytes = 0;
};

/// Work of an engine on the same device.
struct BesideWork {
  gpu::CoRunKind kind = gpu::CoRunKind::kGemm;
  /// Whether gathers run between its iterations, on its stream, or at the same time.
  enum class Gathers : std::uint8_t { kBetween, kBeside } gathers = Gathers::kBetween;
  double iteration_us = 0;  ///< Alone. After each iteration follows a step's gather.
  /// Iterations from a step's submission to the first step after its transfers ended, if those take
  /// no longer than half an iteration.
  double held_us = 0;
  /// Duration of one of its kernels. A scatter waits at most half of it for a multiprocessor,
  /// because its stream has a high priority.
  double launch_us = 0;
};

struct TransferWork {
  std::vector<LaneWork> lanes;  ///< One, or one for each direction.
  std::optional<BesideWork>
      beside;  ///< If set, the rates of lanes add up; else the slower one counts.
};

/// The stage or limit that sets the rate.
enum class Bound : std::uint8_t {
  kLink,    ///< The link's own rate.
  kCalls,   ///< Starting copies, entries and launches, on the submitting thread or the device.
  kMemory,  ///< The device's memory, while fragments are packed.
  kMultiprocessors,  ///< The kernels' share of the link, or the few CTAs of a scatter.
  kLimit,            ///< A requested rate limit.
  kWaits             ///< A step's wait for an earlier step.
};
/// "link", "calls", "memory", "SMs", "limit", "waits".
[[nodiscard]] const char* to_string(Bound bound);

struct Expected {
  double gb_per_s = 0;
  Bound bound = Bound::kLink;
  /// How much longer an iteration of the other work takes.
  std::optional<double> slow_down_percent = std::nullopt;
};

/// The rate is never above the link's peaks or a limit.
[[nodiscard]] Expected expect(const DeviceProfile& device, const TransferWork& work);

}  // namespace kvferry::bench
