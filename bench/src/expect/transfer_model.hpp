// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/co_run_launcher.hpp"
#include "kvferry/gpu/copy_path.hpp"

#include "expect/device_profile.hpp"

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

/// How fast a transfer should be. Its bytes flow through stages that work at the same time: the
/// thread that submits, the copy engine with the link, and the kernel that packs or unpacks. The
/// slowest stage sets the rate.
namespace kvferry::bench {

/// What goes one way. All sizes are at least 1.
struct LaneWork {
  gpu::CopyDirection direction = gpu::CopyDirection::kHostToDevice;
  gpu::CopyPath path = gpu::CopyPath::kPerRun;
  std::uint64_t bytes = 0;           ///< Of all that is timed together.
  std::uint64_t fragment_bytes = 0;  ///< Contiguous on the device: what a kernel moves.
  std::uint64_t run_bytes = 0;       ///< Of one copy, or of one entry of a batch call.
  std::uint64_t piece_bytes = 0;     ///< Of one batch call, one launch or one staged piece.
  /// kStaged: what is packed before the first copy begins, or unpacked after the last one.
  std::uint64_t fill_bytes = 0;
  double limit_gb_per_s = std::numeric_limits<double>::infinity();
  /// Beside other work: no more bytes than `window_bytes` are under way at once, in units that
  /// leave whole.
  double window_bytes = std::numeric_limits<double>::infinity();
  double unit_bytes = 0;
};

/// An engine's kind of work on the same device.
struct BesideWork {
  gpu::CoRunKind kind = gpu::CoRunKind::kGemm;
  /// Whether gathers run between its iterations, on its stream, or beside them.
  enum class Gathers : std::uint8_t { kBetween, kBeside } gathers = Gathers::kBetween;
  double iteration_us = 0;  ///< Alone; each is followed by the gather of what a step stores.
  /// From a step's submission until the next one after its transfers ended, if those take no longer
  /// than half an iteration.
  double held_us = 0;
  /// Of one of its kernels: a scatter waits half of it for a multiprocessor, at most, because its
  /// stream has a high priority.
  double launch_us = 0;
};

struct TransferWork {
  std::vector<LaneWork> lanes;       ///< One, or one of each direction.
  std::optional<BesideWork> beside;  ///< Then rates of lanes add up; else the slower one counts.
};

/// What sets the rate.
enum class Bound : std::uint8_t {
  kLink,             ///< The link's own rate.
  kCalls,            ///< Copies, entries and launches: of the submitting thread or of the device.
  kMemory,           ///< The device's memory, where fragments are packed.
  kMultiprocessors,  ///< What kernels get of the link, or the few CTAs of a scatter.
  kLimit,            ///< The rate that was asked for.
  kWaits             ///< What one step waits for before the next.
};
/// "link", "calls", "memory", "SMs", "limit", "waits".
[[nodiscard]] const char* to_string(Bound bound);

struct Expected {
  double gb_per_s = 0;
  Bound bound = Bound::kLink;
  /// By how much longer an iteration of the work beside takes.
  std::optional<double> slow_down_percent = std::nullopt;
};

/// Never above the link's peaks or a limit.
[[nodiscard]] Expected expect(const DeviceProfile& device, const TransferWork& work);

}  // namespace kvferry::bench
