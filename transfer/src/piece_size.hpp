// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"
#include "kvferry/transfer/transfer_engine.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace kvferry::transfer {

/// A device's link to the host, at the speed it has while copies run.
struct PcieLink {
  double gigatransfers_per_second = 0;  ///< Per lane: 32 for PCIe 5.
  std::uint32_t num_lanes = 0;
};

/// Reads current_link_speed and current_link_width of the device at `pci_address` ("0000:c1:00.0")
/// from sysfs. An idle device lowers its speed: below 8 GT/s, which every accelerator that we build
/// for can reach, this takes max_link_speed. That is the device's own maximum, so it overestimates
/// an older slot. Nothing if sysfs does not say, as in most virtual machines.
[[nodiscard]] std::optional<PcieLink> read_pcie_link(const std::string& pci_address,
                                                     const std::filesystem::path& sysfs = "/sys");

/// Bytes per second of large copies: 86 % of the raw rate, because PCIe 5 x16 gives 55 of 64 GB/s
/// (vLLM blog 2026-01-08).
[[nodiscard]] double copy_rate_of(const PcieLink& link);

/// The size of every piece before it followed the link. No smaller size is chosen.
inline constexpr std::uint64_t kLeastPieceBytes = std::uint64_t{8} << 20U;
/// Enough for PCIe 6 x16. A cancelled transfer waits for a running piece, and paced stores come in
/// bursts of one piece.
inline constexpr std::uint64_t kMostPieceBytes = std::uint64_t{64} << 20U;

/// The smallest power of two, from kLeastPieceBytes to kMostPieceBytes, that takes the link a
/// hundred times as long as the fixed cost of a piece. That cost is 4 to 6 us (submission and event
/// of a copy, by others' measurements; counted as 6), which gives 8 MiB on PCIe 3 x16, 16 MiB on
/// PCIe 4 x16, 32 MiB on PCIe 5 x16.
[[nodiscard]] std::uint64_t piece_bytes_at(double bytes_per_second);

/// TransferOptions::piece_bytes. If that is 0: piece_bytes_at() for the device's link or, if sysfs
/// does not say, for the usual link of its family (path_model.hpp). Above kLeastPieceBytes the
/// piece does not exceed half of the bytes in flight, because the link would wait for every single
/// piece; nor half of the staging ring, so that one piece is gathered while another is copied. The
/// host back end has no link and gets kLeastPieceBytes.
[[nodiscard]] std::uint64_t choose_piece_bytes(const gpu::Device& device,
                                               const TransferOptions& options,
                                               const std::filesystem::path& sysfs = "/sys");

}  // namespace kvferry::transfer
