// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/pack_launch.hpp"
#include "kernels/pack_way.hpp"
#include "launch_case.hpp"

#include <cstdint>

namespace kvferry::ptx {

/// A launch of a pack kernel as the library plans it (plan_pack, pack_arguments, fragment_table):
/// random fragments, blocks, alignment, grid and stages. `kernel` is kVector or kBulk. Mapped are
/// the table, the blocks that the launch names and their packed memory, and nothing between them.
[[nodiscard]] LaunchCase make_pack_case(std::uint64_t seed, gpu::PackWay way,
                                        gpu::PackKernel kernel);

/// A launch over blocks whose offsets in the pool pass 2^32, 2^35 and more, and that meets units of
/// several fragments.
[[nodiscard]] LaunchCase make_far_case(gpu::PackWay way, gpu::PackKernel kernel);

}  // namespace kvferry::ptx
