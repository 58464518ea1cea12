// SPDX-License-Identifier: Apache-2.0
#include "co_run_case.hpp"

#include "kernels/co_run_work.hpp"

#include <bit>
#include <cstring>
#include <span>
#include <string>
#include <utility>

namespace kvferry::ptx {
namespace {

constexpr std::uint64_t kTo = 0x7200'0000'0000U;
constexpr std::uint64_t kFrom = 0x7300'0000'0000U;
constexpr std::uint64_t kScaled = 0x7400'0000'0000U;

LaunchCase make_case(const char* kernel, const LaunchShape& shape,
                     const gpu::CoRunArguments& arguments) {
  LaunchCase launch{kernel,
                    shape,
                    {},
                    {},
                    std::string(kernel) + ": " + std::to_string(shape.num_blocks) + " CTAs of " +
                        std::to_string(shape.num_threads) + " threads, " +
                        std::to_string(arguments.num_floats) + " floats, " +
                        std::to_string(arguments.num_passes) + " passes"};
  // Padding has no value, and the kernel reads none.
  launch.parameter.resize(sizeof(arguments));
  std::memcpy(launch.parameter.data(), &arguments, sizeof(arguments));
  return launch;
}

/// Floats of 20 significant bits, of either sign and of many sizes.
std::vector<std::uint8_t> random_floats(std::uint64_t count, Random& random) {
  std::vector<std::uint8_t> bytes(count * sizeof(float));
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto drawn = static_cast<std::uint32_t>(random());
    const std::uint32_t exponent = 107 + drawn % 40;
    const std::uint32_t pattern = (drawn & 0x8000'0000U) | exponent << 23U | (drawn & 0x007f'fff0U);
    std::memcpy(bytes.data() + i * sizeof(float), &pattern, sizeof(float));
  }
  return bytes;
}

}  // namespace

LaunchCase make_co_run_gemm_case(std::uint64_t seed) {
  Random random(seed);
  const LaunchShape shape{static_cast<std::uint32_t>(1 + random() % 4),
                          static_cast<std::uint32_t>(32 * (1 + random() % 8)), 0};
  const std::uint64_t num_threads = std::uint64_t{shape.num_blocks} * shape.num_threads;
  gpu::CoRunArguments arguments{};
  arguments.to = kTo;
  // The emulation says what any thread comes to after one pass or more.
  arguments.num_passes = static_cast<std::uint32_t>(1 + random() % 3);
  LaunchCase launch = make_case("kvferry_co_run_gemm", shape, arguments);
  launch.memory.map(kTo, Access::kWrite, random_floats(num_threads, random));
  return launch;
}

LaunchCase make_co_run_stream_case(std::uint64_t seed) {
  Random random(seed);
  const LaunchShape shape{static_cast<std::uint32_t>(1 + random() % 4),
                          static_cast<std::uint32_t>(32 * (1 + random() % 8)), 0};
  gpu::CoRunArguments arguments{};
  arguments.to = kTo;
  arguments.from = kFrom;
  arguments.scaled = kScaled;
  arguments.num_floats = 4 * (1 + random() % 5000);
  LaunchCase launch = make_case("kvferry_co_run_stream", shape, arguments);
  launch.memory.map(kTo, Access::kWrite, random_floats(arguments.num_floats, random));
  launch.memory.map(kFrom, Access::kRead, random_floats(arguments.num_floats, random));
  launch.memory.map(kScaled, Access::kRead, random_floats(arguments.num_floats, random));
  return launch;
}

}  // namespace kvferry::ptx
