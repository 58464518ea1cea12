// SPDX-License-Identifier: Apache-2.0
#include "expect/expected_rows.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>

namespace kvferry::bench {
namespace {

using gpu::CopyDirection;
using gpu::CopyPath;

constexpr double kBytesPerGb = 1e9;
constexpr double kTolerance = 0.2;
constexpr double kSamePercent = 1;
// gpu/src/kernels/pack_arguments.hpp: the number of blocks in one launch.
constexpr std::uint64_t kMostLaunchBlocks = 960;

double us(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

/// The fragments, or blocks, of `count` that follow one another.
std::uint64_t neighbours(const Placement& placement, std::uint64_t count) {
  return placement.run_length == 0 ? count : std::min<std::uint64_t>(placement.run_length, count);
}

LaneWork copy_lane(const CopyRowOptions& row, CopyDirection direction) {
  const std::uint64_t set_bytes = row.fragment_bytes * row.count;
  LaneWork lane{.direction = direction, .path = row.way.path, .bytes = set_bytes * row.num_sets};
  lane.fragment_bytes = row.fragment_bytes * neighbours(row.placement, row.count);
  lane.run_bytes = lane.fragment_bytes;
  lane.piece_bytes = set_bytes;
  if (row.way.path == CopyPath::kKernel) {
    lane.piece_bytes = std::min(set_bytes, kMostLaunchBlocks * row.fragment_bytes);
  }
  if (row.way.path == CopyPath::kStaged) {
    const std::uint64_t fragments = std::max<std::uint64_t>(
        std::min(row.staged_piece_bytes, set_bytes) / row.fragment_bytes, 1);
    lane.piece_bytes = fragments * row.fragment_bytes;
    lane.run_bytes = lane.piece_bytes;
    lane.fill_bytes = lane.piece_bytes;
  }
  return lane;
}

BesideWork beside_work(const PipelineSettings& settings, gpu::CoRunKind kind) {
  BesideWork work;
  work.kind = kind;
  work.iteration_us = us(settings.work.iteration);
  work.launch_us = us(settings.work.launch);
  // On the compute stream, what a step submits waits for the iterations that were submitted ahead
  // and for its own. Its end is noticed when a later step is submitted.
  const bool on_compute = settings.place == CoRunPlace::kCompute;
  work.gathers = on_compute ? BesideWork::Gathers::kBetween : BesideWork::Gathers::kBeside;
  work.held_us = (on_compute ? kStepsAhead + 2 : 1) * work.iteration_us;
  return work;
}

/// What the lanes of `pipeline` have in common.
struct Plans {
  std::uint64_t block_bytes;
  std::uint64_t plan_bytes;
  std::uint64_t bytes;  ///< The bytes of a round, in one direction.
  std::uint64_t piece_blocks;
  std::uint64_t slots;  ///< The slots of a piece that follow one another.

  Plans(const PipelineShape& shape, const transfer::TransferOptions& options)
      : block_bytes(shape.block.block_bytes()),
        plan_bytes(shape.plan_bytes()),
        bytes(plan_bytes * shape.num_plans),
        piece_blocks(
            std::clamp<std::uint64_t>(options.piece_bytes / block_bytes, 1, shape.blocks_per_plan)),
        slots(neighbours(shape.slots, piece_blocks)) {}
};

LaneWork store_lane(const PipelineSettings& settings, const transfer::TransferOptions& options,
                    const std::optional<double>& limit) {
  const Plans plans(settings.shape, options);
  LaneWork lane{.direction = CopyDirection::kDeviceToHost,
                .path = CopyPath::kStaged,
                .bytes = plans.bytes,
                .fragment_bytes = settings.shape.block.fragment_bytes,
                .run_bytes = plans.slots * plans.block_bytes,
                .piece_bytes = plans.piece_blocks * plans.block_bytes,
                .fill_bytes = std::min(plans.plan_bytes, options.staging_bytes)};
  if (limit) lane.limit_gb_per_s = *limit / kBytesPerGb;
  lane.window_bytes = static_cast<double>(options.staging_bytes);
  return lane;
}

LaneWork load_lane(const PipelineSettings& settings, const transfer::TransferOptions& options,
                   CopyPath path) {
  const Plans plans(settings.shape, options);
  LaneWork lane{.direction = CopyDirection::kHostToDevice,
                .path = path,
                .bytes = plans.bytes,
                .fragment_bytes = settings.shape.block.fragment_bytes,
                .run_bytes = settings.shape.block.fragment_bytes,
                .piece_bytes = plans.piece_blocks * plans.block_bytes};
  if (path == CopyPath::kKernel) {
    lane.piece_bytes = std::min(plans.slots, kMostLaunchBlocks) * plans.block_bytes;
  }
  if (path == CopyPath::kStaged) {
    lane.run_bytes = plans.slots * plans.block_bytes;
    lane.fill_bytes = lane.piece_bytes;
  }
  lane.unit_bytes = static_cast<double>(plans.plan_bytes);
  lane.window_bytes = kLoadsUnderWay * lane.unit_bytes;
  return lane;
}

/// The ways that loads can go, as transfer/ offers them to its chooser.
std::vector<CopyPath> load_paths(const DeviceProfile& device, const PipelineSettings& settings,
                                 const transfer::TransferOptions& options) {
  if (options.copy_path) return {*options.copy_path};
  std::vector<CopyPath> paths = {CopyPath::kPerRun, CopyPath::kKernel};
  if (device.family != gpu::DeviceFamily::kHip) paths.push_back(CopyPath::kBatch);
  const Plans plans(settings.shape, options);
  if (plans.piece_blocks * plans.block_bytes <= options.load_staging_bytes / 2) {
    paths.push_back(CopyPath::kStaged);
  }
  return paths;
}

}  // namespace

Expected expected_copy(const DeviceProfile& device, const CopyRowOptions& row) {
  TransferWork work;
  for (const CopyDirection direction : directions(row.traffic)) {
    work.lanes.push_back(copy_lane(row, direction));
  }
  return expect(device, work);
}

std::uint64_t expected_piece_bytes(const DeviceProfile& device, const PipelineSettings& settings,
                                   const PipelineSubject& subject) {
  const double gb_per_s = std::max(device.h2d_gb_per_s, device.d2h_gb_per_s);
  return transfer::piece_bytes_of(transfer_options(settings, subject), gb_per_s * kBytesPerGb);
}

Expected expected_pipeline(const DeviceProfile& device, const PipelineSettings& settings,
                           const PipelineSubject& subject, std::optional<gpu::CoRunKind> beside) {
  transfer::TransferOptions options = transfer_options(settings, subject);
  options.piece_bytes = expected_piece_bytes(device, settings, subject);
  TransferWork work;
  if (beside) work.beside = beside_work(settings, *beside);
  if (subject.traffic != Traffic::kHostToDevice) {
    work.lanes.push_back(store_lane(settings, options, subject.limit));
  }
  if (subject.traffic == Traffic::kDeviceToHost) return expect(device, work);
  work.lanes.emplace_back();
  Expected best;
  for (const CopyPath path : load_paths(device, settings, options)) {
    work.lanes.back() = load_lane(settings, options, path);
    const Expected expected = expect(device, work);
    if (expected.gb_per_s > best.gb_per_s) best = expected;
  }
  return best;
}

void set_expected(TransferRow& row, const Expected& expected) {
  row.expected_gb_per_s = expected.gb_per_s;
  row.expected_slow_down_percent = expected.slow_down_percent;
  row.bound_by = to_string(expected.bound);
  row.off_model.clear();
  const auto mark = [&row](const char* word) {
    row.off_model += (row.off_model.empty() ? "" : " and ") + std::string(word);
  };
  const double rate = *row.gb_per_s / expected.gb_per_s;
  if (rate < 1 - kTolerance) mark("slower");
  if (rate > 1 + kTolerance) mark("faster");
  if (!row.slow_down_percent || !expected.slow_down_percent) return;
  const double more = *row.slow_down_percent - *expected.slow_down_percent;
  const double tolerated = std::max(kTolerance * *expected.slow_down_percent, kSamePercent);
  if (more > tolerated) mark("costs more");
  if (more < -tolerated) mark("costs less");
}

}  // namespace kvferry::bench
