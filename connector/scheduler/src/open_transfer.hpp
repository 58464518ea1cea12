// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/wire/owner.hpp"

#include "rank_patience.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace kvferry::connector {

/// A store or a load that is under way, for people who ask what an engine waited for.
struct OpenTransfer {
  TransferId transfer;
  Owner owner;
  std::string engine_id;  ///< The owner's; empty for stores, which outlive requests.
  std::string state;
  std::size_t num_blocks = 0;
  RankPatience::Stamp sent;    ///< Plan 0: it is in no plan yet.
  std::vector<RankId> silent;  ///< Ranks that have it and have not ended it.
};

}  // namespace kvferry::connector
