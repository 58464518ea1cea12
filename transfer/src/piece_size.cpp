// SPDX-License-Identifier: Apache-2.0
#include "piece_size.hpp"

#include "path_model.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>

namespace kvferry::transfer {
namespace {

constexpr double kFixedSeconds = 6e-6;
constexpr double kMostShare = 0.01;
constexpr double kShareOfRaw = 0.86;
constexpr double kLeastAwake = 8;
constexpr std::uint32_t kMostLanes = 32;

/// The number at the start of a file, such as "32.0 GT/s PCIe".
template <class Number>
std::optional<Number> first_number(const std::filesystem::path& file) {
  std::ifstream in(file);
  Number number{};
  return in >> number ? std::optional(number) : std::nullopt;
}

}  // namespace

std::optional<PcieLink> read_pcie_link(const std::string& pci_address,
                                       const std::filesystem::path& sysfs) {
  const std::filesystem::path device = sysfs / "bus/pci/devices" / pci_address;
  std::optional<double> speed = first_number<double>(device / "current_link_speed");
  if (!speed || *speed < kLeastAwake) {
    const auto best = first_number<double>(device / "max_link_speed");
    if (best) speed = std::max(*best, speed.value_or(0));
  }
  const auto lanes = first_number<std::uint32_t>(device / "current_link_width");
  // The kernel writes 0, 63 or 255 for a width that it does not know.
  if (!speed || *speed <= 0 || !lanes || *lanes == 0 || *lanes > kMostLanes) return std::nullopt;
  return PcieLink{*speed, *lanes};
}

double copy_rate_of(const PcieLink& link) {
  return kShareOfRaw * link.gigatransfers_per_second * 1e9 * link.num_lanes / 8;
}

std::uint64_t piece_bytes_at(double bytes_per_second) {
  const double wanted =
      std::clamp(bytes_per_second * kFixedSeconds / kMostShare,
                 static_cast<double>(kLeastPieceBytes), static_cast<double>(kMostPieceBytes));
  return std::bit_ceil(static_cast<std::uint64_t>(std::ceil(wanted)));
}

std::uint64_t choose_piece_bytes(const gpu::Device& device, const TransferOptions& options,
                                 const std::filesystem::path& sysfs) {
  if (options.piece_bytes != 0) return options.piece_bytes;
  const gpu::DeviceFamily family = device.traits().family;
  if (family == gpu::DeviceFamily::kHost) return kLeastPieceBytes;
  const auto address = device.pci_address();
  const auto link = address ? read_pcie_link(*address, sysfs) : std::nullopt;
  return piece_bytes_of(options, link ? copy_rate_of(*link) : link_rate(family));
}

std::uint64_t piece_bytes_of(const TransferOptions& options, double bytes_per_second) {
  if (options.piece_bytes != 0) return options.piece_bytes;
  const std::uint64_t room = std::min(options.max_in_flight_bytes, options.staging_bytes) / 2;
  return std::max(kLeastPieceBytes, std::min(piece_bytes_at(bytes_per_second), room));
}

}  // namespace kvferry::transfer
