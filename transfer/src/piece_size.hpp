// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"
#include "kvferry/transfer/transfer_engine.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace kvferry::transfer {

/// A device's link to the host, as it is when copies run.
struct PcieLink {
  double gigatransfers_per_second = 0;  ///< Of a lane: 32 for PCIe 5.
  std::uint32_t num_lanes = 0;
};

/// What sysfs says in current_link_speed and current_link_width of the device at `pci_address`
/// ("0000:c1:00.0"). An idle device lowers its speed: below 8 GT/s, which every accelerator that we
/// build for can reach, max_link_speed is taken. That is the device's own, so that it overestimates
/// an older slot. Nothing if sysfs does not tell, as in most virtual machines.
[[nodiscard]] std::optional<PcieLink> read_pcie_link(const std::string& pci_address,
                                                     const std::filesystem::path& sysfs = "/sys");

/// Bytes per second of large copies: 86 % of the raw rate, because PCIe 5 x16 gives 55 of 64 GB/s
/// (vLLM blog 2026-01-08).
[[nodiscard]] double copy_rate_of(const PcieLink& link);

/// Before pieces followed the link every piece had this; nothing smaller is chosen.
inline constexpr std::uint64_t kLeastPieceBytes = std::uint64_t{8} << 20U;
/// Enough for PCIe 6 x16. A cancelled transfer waits for a piece that runs, and stores that are
/// paced come in bursts of one.
inline constexpr std::uint64_t kMostPieceBytes = std::uint64_t{64} << 20U;

/// The smallest power of two, from kLeastPieceBytes to kMostPieceBytes, that takes the link a
/// hundred times as long as the fixed cost of a piece, which is 4 to 6 us (gpu-first-run.md, F8;
/// counted as 6): 8 MiB on PCIe 3 x16, 16 MiB on PCIe 4 x16, 32 MiB on PCIe 5 x16.
[[nodiscard]] std::uint64_t piece_bytes_at(double bytes_per_second);

/// TransferOptions::piece_bytes. If that leaves it to the link: piece_bytes_at() for the device's
/// link or, if sysfs does not tell, for the link that its family usually has (path_model.hpp).
/// Beyond kLeastPieceBytes the piece does not exceed half of the bytes in flight, because the link
/// would wait for each single piece; nor half of the staging ring, where one piece is gathered
/// while another is copied. The host back end has no link and gets kLeastPieceBytes.
[[nodiscard]] std::uint64_t choose_piece_bytes(const gpu::Device& device,
                                               const TransferOptions& options,
                                               const std::filesystem::path& sysfs = "/sys");

}  // namespace kvferry::transfer
