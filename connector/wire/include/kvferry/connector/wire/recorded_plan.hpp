// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/recorder/recorder.hpp"

#include <cstdint>
#include <span>

namespace kvferry::connector {

/// The number of a request in a recording.
[[nodiscard]] inline std::uint32_t number_of(RequestId id) {
  return static_cast<std::uint32_t>(id.value());
}

/// Records a plan's orders: kStore to kPlanned (recorder/event.hpp). Both sides record a plan so.
void put_plan(recorder::Recorder& to, const StepPlan& plan);
/// Records transfers, in as many events of this kind as they take.
void put_transfers(recorder::Recorder& to, recorder::EventKind kind,
                   std::span<const TransferId> transfers);

}  // namespace kvferry::connector
