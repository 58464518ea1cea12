// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"

#include "rank_patience.hpp"
#include "rank_roll.hpp"

#include <chrono>
#include <optional>
#include <set>
#include <string>

namespace kvferry::connector {

/// The transfers about which ranks have been silent for too long.
struct Overdue {
  std::string what;         ///< One such transfer and its owner.
  std::set<RankId> silent;  ///< The ranks that owe an end of this or another transfer.
  std::chrono::seconds age{0};
};

/// Adds the ranks that have been silent for too long about the transfer, which was sent at `sent`.
/// If it is the first one that is found, `describe` returns the transfer and its owner as text.
template <class Describe>
void add_silent(const RankPatience& patience, const RankRoll& roll, TransferId transfer,
                const RankPatience::Stamp& sent, Describe describe, std::optional<Overdue>& found) {
  roll.for_each_silent([&](RankId rank) {
    const auto age = patience.silent(rank, transfer, sent);
    if (!age) return;
    if (!found) found = {describe(), {}, *age};
    found->silent.insert(rank);
  });
}

}  // namespace kvferry::connector
