// SPDX-License-Identifier: Apache-2.0
#include "borrowed_device.hpp"
#include "rig.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace kvferry::transfer {
namespace {

/// Counts what was prepared.
class PreparedDevice final : public BorrowedDevice {
 public:
  explicit PreparedDevice(gpu::Device& device, gpu::DeviceTraits traits)
      : BorrowedDevice(device), traits_(traits) {}
  [[nodiscard]] gpu::DeviceTraits traits() const override { return traits_; }
  void prepare(const gpu::BlockGeometry& geometry) override {
    prepared.push_back(geometry.packed_bytes);
  }
  std::vector<std::uint64_t> prepared;

 private:
  gpu::DeviceTraits traits_;
};

class PrepareTest : public TransferTest {};

TEST_F(PrepareTest, ReadiesTheDeviceForEveryGroupAtConstruction) {
  Rig rig;
  PreparedDevice device(*rig.device, {.has_pack_kernels = true});
  const TransferEngine engine(device, rig.geometries, *rig.arena, {});
  EXPECT_EQ(device.prepared, (std::vector<std::uint64_t>{128, 192, 47}));
}

TEST_F(PrepareTest, AsksForKernelsOnlyWhereSomethingIsToBePacked) {
  Rig rig;
  PreparedDevice device(*rig.device, {.has_pack_kernels = false});
  { const TransferEngine loads_only(device, rig.geometries, *rig.arena, {.staging_bytes = 0}); }
  EXPECT_TRUE(device.prepared.empty());
  const TransferEngine stores(device, rig.geometries, *rig.arena, {.staging_bytes = 4096});
  EXPECT_EQ(device.prepared.size(), 3U) << "a build without kernels is to be told at start-up";
}

}  // namespace
}  // namespace kvferry::transfer
