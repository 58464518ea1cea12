// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>

namespace kvferry::connector {

/// The class of an exception in a recording (recorder::EventKind::kThrew). The numbers are part of
/// the file's format.
enum class ErrorClass : std::uint8_t {
  kOther = 0,
  kProtocol = 1,
  kTopology = 2,
  kTimeout = 3,
  kConfig = 4,
  kResource = 5
};

[[nodiscard]] ErrorClass class_of(const std::exception& error);

}  // namespace kvferry::connector
