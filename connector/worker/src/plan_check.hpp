// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/wire/step_plan.hpp"

#include <cstdint>
#include <set>
#include <span>

namespace kvferry::connector {

/// Refuses a plan that contradicts itself. After this check the rank does what a plan says: an id
/// that comes twice would stop the process, and two copies that touch the same bytes have no order.
///
/// No transfer has the id 0. Stores and loads name each transfer once, and none that is
/// `under_way`. Each slot is stored into once, and is not loaded from in the same plan. Each block
/// is loaded into once, and is not stored from in the same plan. A chunk has slots of one class.
/// Notices name each transfer and each request once. Cancels and expiries may name transfers that
/// have ended.
///
/// `slots_per_chunk` is by slab class. The classes that the plan names exist. Throws ProtocolError.
void check_consistent(const StepPlan& plan, std::span<const std::uint32_t> slots_per_chunk,
                      const std::set<TransferId>& under_way);

}  // namespace kvferry::connector
