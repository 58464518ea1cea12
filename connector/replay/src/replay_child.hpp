// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/replay/replay.hpp"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace kvferry::connector {

/// A forked child that replays, and tells this process what it found, if nothing stops it before.
class ReplayChild {
 public:
  /// What the child says, for the work in it.
  class Tell {
   public:
    explicit Tell(int to) : to_(to) {}
    /// The books, before a call that is to stop the child; otherwise end() tells them.
    void books(const std::string& text);
    void end(const ReplayResult& result);
    void refusal(const std::string& why);

   private:
    void field(const std::string& text) const;
    int to_;
    bool has_books_ = false;
  };

  /// Does the work in the child, which ends with it, and waits for the child. Throws ResourceError
  /// if there can be no child.
  explicit ReplayChild(const std::function<void(Tell&)>& work);

  /// Nothing if something stopped the child. Throws the RecordingError that the child threw.
  [[nodiscard]] std::optional<ReplayResult> result() const;
  /// The books that a child told which was stopped.
  [[nodiscard]] std::string books() const;
  /// For people.
  [[nodiscard]] std::string how_it_ended() const;

 private:
  std::vector<std::string> told_;
  int status_ = 0;
};

}  // namespace kvferry::connector
