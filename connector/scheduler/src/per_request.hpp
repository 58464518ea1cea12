// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "request_table.hpp"

#include <cstddef>
#include <deque>

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
    if (entries_.size() <= request.place) entries_.resize(request.place + std::size_t{1});
    Entry& entry = entries_[request.place];
    if (entry.id != request.id) entry = {request.id, T{}};
    return entry.value;
  }
  /// T{} if nothing is kept.
  [[nodiscard]] const T& of(const Request& request) const {
    static const T kNothing{};
    if (entries_.size() <= request.place) return kNothing;
    const Entry& entry = entries_[request.place];
    return entry.id == request.id ? entry.value : kNothing;
  }
  /// Back to T{}, with the memory that it has.
  void drop(const Request& request) {
    if (entries_.size() > request.place) entries_[request.place] = {};
  }
  void clear() { entries_.clear(); }

 private:
  struct Entry {
    RequestId id;
    T value{};
  };
  std::deque<Entry> entries_;  ///< Its elements do not move when it grows.
};

}  // namespace kvferry::connector
