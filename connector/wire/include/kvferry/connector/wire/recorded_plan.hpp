// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/recorder/recorder.hpp"

#include <cstdint>
#include <span>

namespace kvferry::connector {

/// Records a plan's orders: kStore to kPlanned (recorder/event.hpp). Both sides record a plan so.
void put_plan(recorder::Recorder& to, const StepPlan& plan);
/// Records transfers, in as many events of this kind as they take.
void put_transfers(recorder::Recorder& to, recorder::EventKind kind,
                   std::span<const TransferId> transfers);

}  // namespace kvferry::connector
