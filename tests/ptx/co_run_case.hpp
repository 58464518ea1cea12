// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "launch_case.hpp"

#include <cstdint>

namespace kvferry::ptx {

/// A launch of kvferry_co_run_gemm: random grid, passes and thread counts.
[[nodiscard]] LaunchCase make_co_run_gemm_case(std::uint64_t seed);

/// A launch of kvferry_co_run_stream. The products in a + 3 * b are exact, so that a fused and an
/// unfused multiply-add agree in every bit.
[[nodiscard]] LaunchCase make_co_run_stream_case(std::uint64_t seed);

}  // namespace kvferry::ptx
