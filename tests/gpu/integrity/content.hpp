// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvferry::integrity {

/// What a block or slot holds.
struct Content {
  enum class Kind : std::uint8_t {
    kUnknown,  ///< A load into it was cancelled, or nothing was ever written.
    kValue,    ///< `key` in every byte.
    kPattern   ///< Every byte follows from key, version and its offset in the packed block.
  };
  Kind kind = Kind::kUnknown;
  std::uint64_t key = 0;
  std::uint64_t version = 0;

  [[nodiscard]] bool known() const { return kind != Kind::kUnknown; }
  /// The packed block.
  void write(std::span<std::uint8_t> packed) const;
  /// The first byte of `packed` that is another one; its size if there is none.
  [[nodiscard]] std::size_t first_difference(std::span<const std::uint8_t> packed) const;
  /// "key 7 version 3".
  [[nodiscard]] std::string text() const;
};

}  // namespace kvferry::integrity
