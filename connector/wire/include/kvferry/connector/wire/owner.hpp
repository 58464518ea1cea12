// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"

#include <cstdint>
#include <string>

namespace kvferry::connector {

/// One scheduler side, that is the engine instance that a plan comes from.
using DomainId = StrongId<struct DomainIdTag, std::uint32_t>;
/// The number of an engine's request. After an engine id was forgotten, the same id gets a new
/// number. 0: no request.
using RequestId = StrongId<struct RequestIdTag, std::uint64_t>;

/// The owner of a pending thing. Two incarnations of one request (id reuse, preemption, resume,
/// reload) differ in their generation, so that nothing of the old one matches the new one (G4).
struct Owner {
  DomainId domain;
  RequestId request;
  Generation generation;
  bool operator==(const Owner&) const = default;
};

/// The owner as text, for messages.
[[nodiscard]] inline std::string to_string(const Owner& owner) {
  return "{domain " + std::to_string(owner.domain.value()) + ", request " +
         std::to_string(owner.request.value()) + ", generation " +
         std::to_string(owner.generation.value()) + "}";
}

}  // namespace kvferry::connector
