// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/recorder/event.hpp"

#include <algorithm>

namespace kvferry::connector {

/// Whether a replayed event is what was recorded. Names that a recording does not have in full can
/// differ. `has_id`: the call's request, if it has one, has its recorded id.
[[nodiscard]] inline bool is_same(const recorder::Event& recorded, const recorder::Event& replayed,
                                  bool has_id) {
  using recorder::EventKind;
  const auto same_head = [&] {
    return recorded.head.word() == replayed.head.word() &&
           recorded.words.size() == replayed.words.size();
  };
  switch (recorded.kind()) {
    case EventKind::kRequest:
      return replayed.kind() == recorded.kind() && recorded.number() == replayed.number() &&
             replayed.words.size() > 1 && recorded.words[0] == replayed.words[0] &&
             recorded.words[1] == replayed.words[1];
    case EventKind::kHints:
      return same_head();  // The names of sessions are only marks.
    case EventKind::kThrew:
      if (!has_id) {
        return replayed.kind() == recorded.kind() && recorded.number() == replayed.number();
      }
      break;
    case EventKind::kBooks:  // A text for people, which another version may write differently.
      return replayed.kind() == recorded.kind();
    default:
      break;
  }
  return same_head() &&
         std::equal(recorded.words.begin(), recorded.words.end(), replayed.words.begin());
}

}  // namespace kvferry::connector
