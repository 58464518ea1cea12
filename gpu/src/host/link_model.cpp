// SPDX-License-Identifier: Apache-2.0
#include "host/link_model.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/mixed_bits.hpp"

#include <cmath>
#include <string>

namespace kvferry::gpu {
namespace {

constexpr std::chrono::microseconds kLongestHoldBack{100};

// The next number of splitmix64.
std::uint64_t mix(std::uint64_t x) { return mixed_bits(x + 0x9e3779b97f4a7c15); }

/// The upper 53 bits as a number in [0, 1).
double to_unit(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

void check_rate(double bytes_per_second, const char* name) {
  if (!std::isfinite(bytes_per_second) || bytes_per_second < 0) {
    throw ConfigError(std::string("HostLinkOptions::") + name + " is " +
                      std::to_string(bytes_per_second) +
                      "; it must be a number of bytes per second, or 0 for no limit");
  }
}

void check_time(std::chrono::nanoseconds time, const char* name) {
  if (time < std::chrono::nanoseconds::zero()) {
    throw ConfigError(std::string("HostLinkOptions::") + name +
                      " is negative: " + std::to_string(time.count()) + " ns");
  }
}

}  // namespace

LinkModel::LinkModel(const HostLinkOptions& options) : options_(options) {
  check_rate(options.h2d_bytes_per_second, "h2d_bytes_per_second");
  check_rate(options.d2h_bytes_per_second, "d2h_bytes_per_second");
  check_time(options.latency, "latency");
  check_time(options.jitter, "jitter");
  check_time(options.stall, "stall");
  if (!(options.fail_probability >= 0 && options.fail_probability <= 1)) {
    throw ConfigError("HostLinkOptions::fail_probability is " +
                      std::to_string(options.fail_probability) + "; it must lie within 0 and 1");
  }
}

bool LinkModel::simulated() const {
  return options_.h2d_bytes_per_second > 0 || options_.d2h_bytes_per_second > 0 ||
         options_.latency.count() > 0 || options_.jitter.count() > 0 ||
         options_.stall.count() > 0 || options_.order == LinkOrder::kShuffled;
}

bool LinkModel::touches_copies() const {
  return simulated() || options_.fail_nth != 0 || options_.fail_probability > 0;
}

std::chrono::nanoseconds LinkModel::occupancy(std::uint64_t copy, CopyDirection direction,
                                              std::uint64_t bytes) const {
  const double rate = direction == CopyDirection::kHostToDevice ? options_.h2d_bytes_per_second
                                                                : options_.d2h_bytes_per_second;
  double nanoseconds =
      to_unit(draw(Purpose::kJitter, copy)) * static_cast<double>(options_.jitter.count());
  if (rate > 0) nanoseconds += static_cast<double>(bytes) / rate * 1e9;
  return options_.latency + std::chrono::nanoseconds(std::llround(std::ceil(nanoseconds)));
}

bool LinkModel::fails(std::uint64_t copy) const {
  return copy == options_.fail_nth ||
         to_unit(draw(Purpose::kFailure, copy)) < options_.fail_probability;
}

std::uint64_t LinkModel::rank(std::uint64_t copy) const {
  return options_.order == LinkOrder::kFifo ? copy : draw(Purpose::kRank, copy);
}

std::chrono::nanoseconds LinkModel::hold_back(std::uint64_t copy) const {
  if (options_.order == LinkOrder::kFifo) return std::chrono::nanoseconds::zero();
  return std::chrono::nanoseconds(draw(Purpose::kHoldBack, copy) %
                                  std::chrono::nanoseconds(kLongestHoldBack).count());
}

std::uint64_t LinkModel::draw(Purpose purpose, std::uint64_t copy) const {
  return mix(mix(mix(options_.seed) + static_cast<std::uint64_t>(purpose)) + copy);
}

}  // namespace kvferry::gpu
