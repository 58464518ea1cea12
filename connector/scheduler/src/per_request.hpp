// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "request_table.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace kvferry::connector {

/// What one part of the scheduler side keeps per request. It is a member of that part. So no other
/// part can write it, and no part needs a mutable request.
///
/// The index is the request's place in the RequestTable, so no hash is computed. A place that was
/// given to another request starts with T{} again. One thread at a time.
template <class T>
class PerRequest {
 public:
  /// The entry, T{} at first. The reference stays valid while the request lives.
  [[nodiscard]] T& of(const Request& request) {
    while (chunks_.size() <= request.place / kChunk) chunks_.push_back(std::make_unique<Chunk>());
    Entry& entry = at(request.place);
    if (entry.id != request.id) entry = {request.id, T{}};
    return entry.value;
  }
  /// The entry, or T{} if nothing is kept.
  [[nodiscard]] const T& of(const Request& request) const {
    static const T kNothing{};
    if (chunks_.size() <= request.place / kChunk) return kNothing;
    const Entry& entry = at(request.place);
    return entry.id == request.id ? entry.value : kNothing;
  }
  /// Resets the entry to T{} and frees its memory.
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

  std::vector<std::unique_ptr<Chunk>> chunks_;  ///< Entries do not move when entries are added.
};

}  // namespace kvferry::connector
