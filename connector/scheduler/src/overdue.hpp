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

/// What ranks have kept silent about for too long.
struct Overdue {
  std::string what;         ///< One such transfer: which, and whose.
  std::set<RankId> silent;  ///< The ranks that owe this or another one.
  std::chrono::seconds age{0};
};

/// Adds the ranks that have been silent about the transfer, sent at `sent`, for too long.
/// `describe` says which one it is and whose, if it is the first that is found.
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
