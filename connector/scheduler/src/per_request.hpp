// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "request_table.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace kvferry::connector {

/// What one part of the scheduler side keeps for each request and decides by. It is a member of
/// that part, so that no other part can write it, and a request of no part need be mutable.
///
/// The index is the request's place in the RequestTable: no hash is computed. A place that has gone
/// to another request begins with T{} again. One thread at a time.
template <class T>
class PerRequest {
 public:
  /// T{} when it is asked for the first time. The reference stays valid while the request lives.
  [[nodiscard]] T& of(const Request& request) {
    while (chunks_.size() <= request.place / kChunk) chunks_.push_back(std::make_unique<Chunk>());
    Entry& entry = at(request.place);
    if (entry.id != request.id) entry = {request.id, T{}};
    return entry.value;
  }
  /// T{} if nothing is kept.
  [[nodiscard]] const T& of(const Request& request) const {
    static const T kNothing{};
    if (chunks_.size() <= request.place / kChunk) return kNothing;
    const Entry& entry = at(request.place);
    return entry.id == request.id ? entry.value : kNothing;
  }
  /// Back to T{}; its memory is freed.
  void drop(const Request& request) {
    if (chunks_.size() > request.place / kChunk) at(request.place) = {};
  }

 private:
  struct Entry {
    RequestId id;
    T value{};
  };
  static constexpr std::uint32_t kChunk = 64;
  using Chunk = std::array<Entry, kChunk>;

  [[nodiscard]] Entry& at(std::uint32_t place) const {
    return (*chunks_[place / kChunk])[place % kChunk];
  }

  std::vector<std::unique_ptr<Chunk>> chunks_;  ///< Entries do not move when there are more.
};

}  // namespace kvferry::connector
