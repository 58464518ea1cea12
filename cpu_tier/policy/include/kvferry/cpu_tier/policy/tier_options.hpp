// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/policy/eviction_table.hpp"

namespace kvferry::cpu_tier {

struct TierOptions {
  Eviction eviction = Eviction::kAdaptive;
  Admission admission = Admission::kAdaptive;
  /// Most of the tier's slots that are kept for queued requests (Tier::await()), as a share in
  /// [0, 1]; 0 switches the look-ahead off.
  float max_awaited_share = 0.25F;
  /// Most of the tier's slots whose blocks stay because they are promised (TierPromises), or
  /// have left early, as a share in [0, 1]; 0: no promise is believed.
  float max_promised_share = 0.25F;
  /// Whether Tier::take_key_events() tells anything; somebody has to take them then.
  bool key_events = false;
};

}  // namespace kvferry::cpu_tier
