// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvferry::bench {

/// The shape of a block of a KV cache, for example one fragment per layer.
struct BlockShape {
  std::uint32_t num_fragments = 1;
  std::uint64_t fragment_bytes = 0;
  [[nodiscard]] std::uint64_t block_bytes() const { return num_fragments * fragment_bytes; }
};

/// Reads a shape such as "64x8KiB". Throws ConfigError.
[[nodiscard]] BlockShape block_shape_from(std::string_view text);
[[nodiscard]] std::string to_string(const BlockShape& shape);

}  // namespace kvferry::bench
