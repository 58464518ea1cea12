// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "per_request.hpp"
#include "request_table.hpp"

#include <cstddef>

namespace kvferry::connector {

/// Requests whose load has ended, and which the engine has not reached in its queue since then.
/// They hold GPU blocks.
///
/// vLLM before 0.32 goes through its queue in order and stops at the first request for which it has
/// no blocks. A request that was told to ask again is overtaken by others. When it gets its answer
/// and finds no free blocks, vLLM stops at it, and never reaches the loaded requests behind it that
/// hold them. If nothing runs that could free any, that lasts for ever. A request that is to ask
/// again is passed over, so asking all of them to do so once lets the engine reach the loaded ones.
class LoadedQueue {
 public:
  /// The engine was told that the request's load has ended.
  void on_ended(const Request& request) { set(request, true); }
  /// The engine has reached the request, or it is finished.
  void on_reached(const Request& request) { set(request, false); }
  /// A request runs in this step.
  void on_scheduled() { runs_ = true; }
  /// A step is planned. All loads whose end the engine knows could have been reached in it. It says
  /// so in every other step at most, so a request that can run for another reason is answered.
  void on_plan() {
    is_blocked_ = !runs_ && num_waiting_ > 0 && !is_blocked_;
    runs_ = false;
  }
  /// Whether a request that the engine reaches now, before those, is to ask again in the next step.
  [[nodiscard]] bool is_blocked() const { return is_blocked_ && num_waiting_ > 0; }

 private:
  void set(const Request& request, bool waits) {
    bool& now = waits_.of(request);
    num_waiting_ += static_cast<std::size_t>(waits) - static_cast<std::size_t>(now);
    now = waits;
  }

  PerRequest<bool> waits_;
  std::size_t num_waiting_ = 0;
  bool runs_ = false;
  bool is_blocked_ = false;
};

}  // namespace kvferry::connector
