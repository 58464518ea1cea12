// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kvferry::bench {

/// The word of `known` that the user probably meant by `typed`. Empty if none is close: for words
/// of four letters up to two changes, and one more for every three letters. Two neighbours in the
/// wrong order count as one change.
[[nodiscard]] std::string closest(std::string_view typed, std::span<const std::string> known);

}  // namespace kvferry::bench
