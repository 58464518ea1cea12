// SPDX-License-Identifier: Apache-2.0
#include "measure/calibration.hpp"

#include "kvferry/gpu/host_link.hpp"
#include "kvferry/transfer/transfer_engine.hpp"

#include "measure/pipeline_rig.hpp"

#include <gtest/gtest.h>

namespace kvferry::bench {
namespace {

TransferRow row(const std::string& direction, const std::string& path, double gb_per_s) {
  TransferRow row;
  row.direction = direction;
  row.path = path;
  row.placement = "shuffled";
  row.fragment_bytes = 4096;
  row.count = 512;
  row.gb_per_s = gb_per_s;
  row.verified = true;
  return row;
}

TEST(CalibrationTable, HoldsVerifiedRowsOfOneDirectionAndSuitsTheTransferEngine) {
  std::vector<TransferRow> rows = {row("h2d", "staged", 50), row("h2d", "batch", 6),
                                   row("d2h", "per_run", 3), row("both", "batch", 70),
                                   row("h2d", "kernel", 30)};
  rows.back().verified = false;
  const transfer::CopyPathTable table = calibration_table(rows);
  ASSERT_EQ(table.size(), 3U);
  EXPECT_EQ(table.front(), (transfer::CopyPathRate{gpu::CopyDirection::kHostToDevice,
                                                   gpu::CopyPath::kStaged, 4096, 512, 50e9}));
  const auto device = gpu::make_host_device();
  const PipelineRig rig(
      *device, {.block = {2, 512}, .blocks_per_plan = 2, .num_plans = 1, .slots = {}, .seed = 1});
  transfer::TransferOptions options;
  options.copy_path_table = table;
  const transfer::TransferEngine engine(*device, {rig.geometry()}, rig.arena(), options);
  EXPECT_GE(engine.copy_path_table().size(), table.size());
}

}  // namespace
}  // namespace kvferry::bench
