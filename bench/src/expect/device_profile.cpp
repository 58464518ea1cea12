// SPDX-License-Identifier: Apache-2.0
// Every constant has its source next to it, and the range of the values found. A constant that is
// "assumed" has no source.
#include "expect/device_profile.hpp"

#include "kvferry/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

namespace kvferry::bench {
namespace {

constexpr CallCosts kCudaCosts = {
    // vllm#38460: about 2 us of the submitting thread for a cudaMemcpyAsync.
    .copy_call_us = 2,
    // vLLM blog 2026-01-08, H100, one call per block: 0.9, 8.2, 29 and 46 GB/s with 4, 32, 256 and
    // 2048 KiB, which is 4 us and the bytes at 52 GB/s. 3.4 to 5.3 there, 5 to 7 in
    // arXiv 2602.21548 (5.2).
    .copy_start_us = 4,
    // Assumed: as one copy; 2 to 7.
    .batch_call_us = 2,
    .batch_start_us = 4,
    // vllm#42212, H100: 6.8 GB/s with 4 KiB. 0.6 to 1.1: docs/bench/model.md.
    .entry_call_us = 0.6,
    // vllm#42212, H100: 44.1 and 51.8 GB/s with 28 and 64 KiB beside 53. 0.03 to 0.2.
    .entry_start_us = 0.1,
    // susun-blog.com, "pegainfer (3)": 4 to 6 us.
    .launch_call_us = 5,
    // Assumed: 1 to 3 us from the end of one kernel to the beginning of the next in a stream.
    .launch_start_us = 2,
    // Assumed: 0.5 to 2.
    .wait_us = 1,
    // vllm#42212, H100: 3.8 to 7.1 GB/s from 4 to 24 KiB, with 10,000 entries and more. vllm#57555
    // has the same step on an A30.
    .slow_entry_bytes = 28 * 1024,
    .slow_entry_gb_per_s = 6.5,
};

constexpr CallCosts kHipCosts = {
    // ROCm/clr#273, 4 KiB on gfx950: 1.7 GB/s.
    .copy_call_us = 2.4,
    // sglang#31741, MI300X: 2.2 GB/s with 16 KiB. 2.4 to 9.3 in ROCm/clr#273.
    .copy_start_us = 7,
    // Assumed: as one copy.
    .batch_call_us = 2.4,
    .batch_start_us = 7,
    // ROCm/clr#273: the batch call takes 0.6 to 1.6 times as long as its entries one by one.
    .entry_call_us = 2.4,
    .entry_start_us = 7,
    // Assumed: as CUDA's.
    .launch_call_us = 5,
    .launch_start_us = 2,
    .wait_us = 1,
};

// 128b/130b: PCIe base specification from 3.0 on. Raw GT/s of a lane: 16 (gen 4), 32 (gen 5).
constexpr double kLineCode = 128.0 / 130.0;
constexpr double kLanes = 16;
// The share of that which a copy engine gets. A packet with 256 bytes of payload has 20 to 28 bytes
// around it (Intel AN 829), so 0.90 to 0.93 is the most. Found: 55.3 of 63.0 GB/s on an H200
// (DeepSpeed#8283), 52 to 53 on H100s (nvbandwidth#24, vLLM blog), 25 to 26 of 31.5 on A100s
// (nvbandwidth#11): 0.79 to 0.88.
constexpr double kPayloadShare = 0.84;
// The rate of both directions together, over twice the rate of one: 83.4 of 2 x 53 GB/s on an H100
// (vLLM blog 2026-01-08). 0.62 on A100s, where a load beside a store gets half (nvbandwidth#11,
// #53).
constexpr double kBothShare = 0.79;
// The share of the data sheet's memory rate that a triad gets: arXiv 2510.27583 has up to 0.90 for
// NVIDIA's devices and 0.81 for the MI300X (BabelStream).
constexpr double kCudaTriadShare = 0.90;
constexpr double kHipTriadShare = 0.81;

struct Known {
  std::string_view name;
  gpu::DeviceFamily family;
  double gigatransfers_per_s;  ///< Rate of a lane of the PCIe link, which has 16 lanes.
  double memory_gb_per_s;      ///< From the data sheet.
  std::uint32_t num_multiprocessors;
  std::uint32_t threads_per_multiprocessor;  ///< By compute capability (CUDA programming guide).
};

constexpr auto kOlder = gpu::DeviceFamily::kCudaOlder;
constexpr auto k90 = gpu::DeviceFamily::kCuda90;
// NVIDIA's data sheets of the A100 (80 GB), H100, H200, B200 and L40S and their architectures'
// white papers (multiprocessors); AMD's data sheet of the MI300X (304 compute units of 32 waves).
// The B200 is the one of HGX boards with PCIe 5 processors.
constexpr std::array<Known, 8> kKnown = {{
    {"a100-pcie", kOlder, 16, 1935, 108, 2048},
    {"a100-sxm", kOlder, 16, 2039, 108, 2048},
    {"h100-pcie", k90, 32, 2000, 114, 2048},
    {"h100-sxm", k90, 32, 3350, 132, 2048},
    {"h200", k90, 32, 4800, 132, 2048},
    {"b200", k90, 32, 8000, 148, 2048},
    {"l40s", kOlder, 16, 864, 142, 1536},
    {"mi300x", gpu::DeviceFamily::kHip, 32, 5300, 304, 2048},
}};

DeviceProfile profile_of(const Known& known) {
  const double link = known.gigatransfers_per_s * kLanes * kLineCode / 8 * kPayloadShare;
  const bool hip = known.family == gpu::DeviceFamily::kHip;
  return {.name = std::string(known.name),
          .family = known.family,
          .h2d_gb_per_s = link,
          .d2h_gb_per_s = link,
          .both_gb_per_s = 2 * link * kBothShare,
          .memory_gb_per_s = known.memory_gb_per_s * (hip ? kHipTriadShare : kCudaTriadShare),
          .num_multiprocessors = known.num_multiprocessors,
          .threads_per_multiprocessor = known.threads_per_multiprocessor};
}

}  // namespace

const CallCosts& call_costs(gpu::DeviceFamily family) {
  return family == gpu::DeviceFamily::kHip ? kHipCosts : kCudaCosts;
}

DeviceProfile profile_from(std::string_view name) {
  const auto* const found = std::find_if(kKnown.begin(), kKnown.end(),
                                         [&](const Known& known) { return known.name == name; });
  if (found != kKnown.end()) return profile_of(*found);
  std::string names;
  for (const Known& known : kKnown) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", known.name);
  }
  throw ConfigError(fmt::format("'{}' is not a known GPU: write {}", name, names));
}

std::string profile_text(const DeviceProfile& device) {
  return fmt::format(
      "{}: link {:.1f} GB/s one way, {:.1f} GB/s both; memory {:.0f} GB/s; {} multiprocessors",
      device.name, device.h2d_gb_per_s, device.both_gb_per_s, device.memory_gb_per_s,
      device.num_multiprocessors);
}

std::string known_profiles_text() {
  std::string text;
  for (const Known& known : kKnown) text += profile_text(profile_of(known)) + '\n';
  return text;
}

DeviceProfile measured_profile(const gpu::Device& device, const LinkPeaks& peaks) {
  const gpu::DeviceTraits traits = device.traits();
  return {
      .name = "measured",
      .family = traits.family,
      .h2d_gb_per_s = peaks.h2d_gb_per_s,
      .d2h_gb_per_s = peaks.d2h_gb_per_s,
      .both_gb_per_s = peaks.both_gb_per_s,
      .memory_gb_per_s = peaks.device_gb_per_s.value_or(std::numeric_limits<double>::infinity()),
      .num_multiprocessors = std::max(traits.num_multiprocessors, 1U)};
}

}  // namespace kvferry::bench
