// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/recorder/recorder.hpp"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string_view>

namespace kvferry::recorder {

/// The class of an exception in a recording (EventKind::kThrew). The numbers are part of the file's
/// format.
enum class ErrorClass : std::uint8_t {
  kOther = 0,
  kProtocol = 1,
  kTopology = 2,
  kTimeout = 3,
  kConfig = 4,
  kResource = 5
};

[[nodiscard]] ErrorClass class_of(const std::exception& error);

/// Records a text, at most its first `most` bytes.
void put_text(Recorder& to, EventKind kind, std::uint32_t number, std::string_view text,
              std::size_t most = kMaxText);
/// Records that a call throws this (kThrew).
void put_error(Recorder& to, const std::exception& error);

/// From now on, `to` records a broken invariant that this thread finds (kBroken); null: nothing
/// records it. Another thread's is not recorded, because only one thread may write. Returns the
/// recorder that was set before on this thread.
Recorder* set_witness(Recorder* to);
/// The recorder that is set on this thread, or null.
[[nodiscard]] Recorder* witness();

}  // namespace kvferry::recorder
