// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/slots/peers.hpp"
#include "kvferry/recorder/event.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

namespace kvferry::connector {

/// What the peers of a shared tier answered (recorder::EventKind::kPeers), in its order. If the
/// replay asks for more than there is, or for something else, its own events differ from the
/// recorded ones, so any answer does. An answer that no peers could give counts as none, because a
/// file can be damaged.
class PeerAnswers {
 public:
  void add(const recorder::Event& answer) { answers_.push_back(answer); }
  void clear() { answers_.clear(); }
  /// The next answer, if it is one of this kind, and begins with this word if there is one. No
  /// answer is taken twice.
  [[nodiscard]] std::optional<recorder::Event> next(
      recorder::PeerAnswer what, std::optional<std::uint64_t> first_word = std::nullopt);

 private:
  std::deque<recorder::Event> answers_;
};

/// Peers that give these answers, which outlive the result.
[[nodiscard]] std::unique_ptr<cpu_tier::Peers> replayed_peers(PeerAnswers& answers);

}  // namespace kvferry::connector
