// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/pack_addressing.hpp"

/// The work of one thread in co_run_launcher.hpp's kernels, written once for the kernels, the host
/// back end and the stand-in drivers.
namespace kvferry::gpu {

/// The only parameter of both kernels, by value. Addresses are the device's.
struct CoRunArguments {
  uint64_t to;          ///< Both: the results, a float for each element (stream) or thread (gemm).
  uint64_t from;        ///< Stream: b.
  uint64_t scaled;      ///< Stream: c.
  uint64_t num_floats;  ///< Stream: floats of each buffer, a multiple of 4.
  uint32_t num_passes;  ///< Gemm: passes of kCoRunSteps steps each.
};

/// Independent chains of a thread, enough to hide an addition's latency with 8 warps per scheduler.
inline constexpr uint32_t kCoRunChains = 8;
/// Multiply-adds of each chain in one pass.
inline constexpr uint32_t kCoRunSteps = 32;
/// Floating-point operations of one thread in one pass.
inline constexpr uint64_t kCoRunFlopPerPass = 2ULL * kCoRunChains * kCoRunSteps;
inline constexpr float kCoRunScale = 3.0F;

/// The chains approach their fixed point from below: x = x / 2 + 1 has it at 2. All values stay
/// normal, and every chain is 2 at the end, however rounding is ordered.
KVFERRY_HOST_DEVICE float co_run_gemm(uint32_t num_passes, uint32_t thread) {
  float chains[kCoRunChains];
  KVFERRY_UNROLL
  for (uint32_t i = 0; i < kCoRunChains; ++i) {
    chains[i] = static_cast<float>((thread + i) % 7) * 0.125F;
  }
  KVFERRY_NO_UNROLL
  for (uint32_t pass = 0; pass < num_passes; ++pass) {
    KVFERRY_UNROLL
    for (uint32_t step = 0; step < kCoRunSteps; ++step) {
      KVFERRY_UNROLL
      for (uint32_t i = 0; i < kCoRunChains; ++i) chains[i] = chains[i] * 0.5F + 1.0F;
    }
  }
  float sum = 0;
  KVFERRY_UNROLL
  for (uint32_t i = 0; i < kCoRunChains; ++i) sum += chains[i];
  return sum;
}
/// The result of co_run_gemm() after one or more passes.
inline constexpr float kCoRunGemmResult = 2.0F * kCoRunChains;

KVFERRY_HOST_DEVICE float co_run_triad(float b, float c) { return b + kCoRunScale * c; }

}  // namespace kvferry::gpu
