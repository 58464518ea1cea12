// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvferry {

/// How a transfer ended on one rank. In all three no device of the rank touches its blocks, ring
/// entries and slots any more. Reports carry the number.
enum class Outcome : std::uint8_t {
  kDone = 0,       ///< Every byte arrived.
  kFailed = 1,     ///< A device operation failed; the destination's bytes are worthless.
  kCancelled = 2,  ///< A part that had not started was dropped; likewise worthless.
};

}  // namespace kvferry
