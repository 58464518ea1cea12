// SPDX-License-Identifier: Apache-2.0
#include "measure/block_shape.hpp"

#include "kvferry/base/error.hpp"

#include "options/sizes.hpp"

#include <fmt/format.h>

#include <charconv>

namespace kvferry::bench {

BlockShape block_shape_from(std::string_view text) {
  BlockShape shape;
  const std::size_t times = text.find('x');
  const char* const end = text.data() + (times == std::string_view::npos ? 0 : times);
  const auto parsed = std::from_chars(text.data(), end, shape.num_fragments);
  if (parsed.ec != std::errc() || parsed.ptr != end || shape.num_fragments == 0) {
    throw ConfigError(fmt::format(
        "'{}' is not the shape of a block: write 64x8KiB for 64 fragments of 8 KiB", text));
  }
  shape.fragment_bytes = bytes_from(text.substr(times + 1));
  return shape;
}

std::string to_string(const BlockShape& shape) {
  return fmt::format("{} x {}", shape.num_fragments, bytes_text(shape.fragment_bytes));
}

}  // namespace kvferry::bench
