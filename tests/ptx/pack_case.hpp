// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/pack_launch.hpp"
#include "kernels/pack_way.hpp"
#include "launch_case.hpp"

#include <cstdint>

namespace kvferry::ptx {

/// Which pack kernel a launch takes. `kernel` is kVector or kBulk; the latter makes no sums.
struct PackChoice {
  gpu::PackWay way;
  gpu::PackKernel kernel;
  gpu::PackSums sums;
};

/// A launch of a pack kernel as the library plans it (plan_pack, pack_arguments, fragment_table):
/// random fragments, blocks, alignment, grid and stages. Mapped are the table, the blocks that the
/// launch names, their packed memory and their sums, and nothing between them.
[[nodiscard]] LaunchCase make_pack_case(std::uint64_t seed, const PackChoice& choice);

/// A launch over blocks whose offsets in the pool pass 2^32, 2^35 and more, and that meets units of
/// several fragments.
[[nodiscard]] LaunchCase make_far_case(const PackChoice& choice);

}  // namespace kvferry::ptx
