// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shared_instance.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace kvferry::cpu_tier {

/// A shared memory for tiers of several instances, each with its own metadata.
class TierPeersTest : public ::testing::Test {
 protected:
  [[nodiscard]] SharedState state(std::uint32_t slot) const {
    return rig_.word(place_of(SlotId(slot), Instance::kChunkSlots)).state();
  }

  SharedTierRig rig_{Instance::kShape};
};

}  // namespace kvferry::cpu_tier
