// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvferry {

/// How a transfer ended on one rank. In all three cases no device of the rank touches the
/// transfer's blocks, ring entries and slots any more. Reports carry the number.
enum class Outcome : std::uint8_t {
  kDone = 0,       ///< Every byte arrived.
  kFailed = 1,     ///< A device operation failed; the destination's bytes are undefined.
  kCancelled = 2,  ///< A part that had not started was dropped; the bytes are undefined.
};

}  // namespace kvferry
