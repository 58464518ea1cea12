// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/policy/eviction_table.hpp"

namespace kvferry::cpu_tier {

struct TierOptions {
  Eviction eviction = Eviction::kAdaptive;
  Admission admission = Admission::kAdaptive;
  /// Largest share of the tier's slots, in [0, 1], that is kept for queued requests
  /// (Tier::await()); 0: none.
  float max_awaited_share = 0.25F;
  /// Largest share of the tier's slots, in [0, 1], whose blocks stay because they are promised
  /// (TierPromises), or have left early; 0: promises have no effect.
  float max_promised_share = 0.25F;
  /// Whether there are key events. If so, the caller has to take them (Tier::take_key_events()).
  bool key_events = false;
  /// Whether the tier notes what happens to its keys. If so, the caller has to take it (TierMoves).
  bool key_moves = false;
};

}  // namespace kvferry::cpu_tier
