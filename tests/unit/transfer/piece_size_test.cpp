// SPDX-License-Identifier: Apache-2.0
#include "piece_size.hpp"

#include "kvferry/gpu/host_link.hpp"

#include "borrowed_device.hpp"
#include "byte_sizes.hpp"
#include "path_model.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

namespace kvferry::transfer {
namespace {

constexpr const char* kAddress = "0000:c1:00.0";

/// A device of some vendor in a slot of the test's.
class SlotDevice final : public BorrowedDevice {
 public:
  SlotDevice(gpu::Device& device, gpu::DeviceFamily family)
      : BorrowedDevice(device), family_(family) {}
  [[nodiscard]] gpu::DeviceTraits traits() const override { return {.family = family_}; }
  [[nodiscard]] std::optional<std::string> pci_address() const override { return kAddress; }

 private:
  gpu::DeviceFamily family_;
};

/// A sysfs with one device.
class PieceSizeTest : public ::testing::Test {
 protected:
  PieceSizeTest() { std::filesystem::create_directories(folder()); }
  ~PieceSizeTest() override { std::filesystem::remove_all(sysfs_); }

  [[nodiscard]] std::filesystem::path folder() const {
    return sysfs_ / "bus/pci/devices" / kAddress;
  }
  void write(const std::string& file, const std::string& text) const {
    std::ofstream(folder() / file) << text << '\n';
  }
  void write_link(const std::string& current, const std::string& width,
                  const std::string& best) const {
    write("current_link_speed", current);
    write("current_link_width", width);
    write("max_link_speed", best);
  }
  [[nodiscard]] std::uint64_t chosen(const TransferOptions& options = roomy(),
                                     gpu::DeviceFamily family = gpu::DeviceFamily::kCuda90) const {
    return choose_piece_bytes(SlotDevice(*host_, family), options, sysfs_);
  }
  [[nodiscard]] static TransferOptions roomy() {
    return {.staging_bytes = 1024 * kMiB, .max_in_flight_bytes = 1024 * kMiB};
  }

  const std::filesystem::path sysfs_ =
      std::filesystem::path(::testing::TempDir()) /
      ("kvferry_sysfs_" +
       std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
  const std::unique_ptr<gpu::Device> host_ = gpu::make_host_device();
};

TEST_F(PieceSizeTest, FollowsGenerationAndWidth) {
  const struct {
    const char* speed;
    const char* width;
    std::uint64_t mib;
  } links[] = {{"64.0 GT/s PCIe", "16", 64}, {"32.0 GT/s PCIe", "16", 32},
               {"32.0 GT/s PCIe", "8", 16},  {"16.0 GT/s PCIe", "16", 16},
               {"8.0 GT/s PCIe", "16", 8},   {"8.0 GT/s PCIe", "1", 8}};
  for (const auto& link : links) {
    write_link(link.speed, link.width, "64.0 GT/s PCIe");
    EXPECT_EQ(chosen(), link.mib * kMiB) << link.speed << " x" << link.width;
  }
}

TEST_F(PieceSizeTest, TheFixedCostIsAtMostOnePercent) {
  for (const double rate : {14e9, 25e9, 27e9, 53e9, 55e9, 100e9}) {
    const double seconds = static_cast<double>(piece_bytes_at(rate)) / rate;
    EXPECT_GE(seconds, 100 * 6e-6) << rate;
    EXPECT_LT(seconds, 200 * 6e-6) << rate << ": half would do";
  }
  EXPECT_EQ(piece_bytes_at(1e6), kLeastPieceBytes);
  EXPECT_EQ(piece_bytes_at(1e15), kMostPieceBytes);
}

TEST_F(PieceSizeTest, OfALinkThatSleepsTheBestSpeedCounts) {
  write_link("2.5 GT/s PCIe", "16", "32.0 GT/s PCIe");
  const auto link = read_pcie_link(kAddress, sysfs_);
  ASSERT_TRUE(link);
  EXPECT_EQ(link->gigatransfers_per_second, 32);
  EXPECT_EQ(link->num_lanes, 16U);
  write("max_link_speed", "Unknown");
  EXPECT_EQ(read_pcie_link(kAddress, sysfs_)->gigatransfers_per_second, 2.5);
}

TEST_F(PieceSizeTest, WhatSysfsDoesNotTellIsTheFamilys) {
  const auto expect_unknown = [&] {
    EXPECT_FALSE(read_pcie_link(kAddress, sysfs_));
    for (const auto family : {gpu::DeviceFamily::kCudaOlder, gpu::DeviceFamily::kCuda90}) {
      EXPECT_EQ(chosen(roomy(), family), piece_bytes_at(link_rate(family)));
    }
  };
  expect_unknown();
  EXPECT_EQ(chosen(roomy(), gpu::DeviceFamily::kCudaOlder), 16 * kMiB);
  EXPECT_EQ(chosen(roomy(), gpu::DeviceFamily::kHip), 32 * kMiB);
  write_link("Unknown", "16", "Unknown");
  expect_unknown();
  for (const char* const width : {"0", "63", "255", "", "x"}) {
    write_link("16.0 GT/s PCIe", width, "16.0 GT/s PCIe");
    expect_unknown();
  }
}

TEST_F(PieceSizeTest, GrowsNoFurtherThanTwoPiecesHaveRoom) {
  write_link("64.0 GT/s PCIe", "16", "64.0 GT/s PCIe");
  TransferOptions options = roomy();
  options.max_in_flight_bytes = 64 * kMiB;
  EXPECT_EQ(chosen(options), 32 * kMiB);
  options.staging_bytes = 40 * kMiB;
  EXPECT_EQ(chosen(options), 20 * kMiB);
  options.max_in_flight_bytes = 0;
  EXPECT_EQ(chosen(options), kLeastPieceBytes);
}

TEST_F(PieceSizeTest, WhatTheOptionsSayIsTakenAndTheHostHasNoLink) {
  write_link("32.0 GT/s PCIe", "16", "32.0 GT/s PCIe");
  TransferOptions options = roomy();
  EXPECT_EQ(chosen(options, gpu::DeviceFamily::kHost), kLeastPieceBytes);
  options.piece_bytes = 1000;
  EXPECT_EQ(chosen(options), 1000U);
}

}  // namespace
}  // namespace kvferry::transfer
