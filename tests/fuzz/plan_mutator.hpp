// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/wire/step_plan.hpp"

#include <cstdint>
#include <random>

namespace kvferry::fuzz {

/// Changes one thing of a plan: an order more or less, one that comes twice, another number, block,
/// slot or class. Numbers are small, so that they meet; now and then one is any.
void mutate(connector::StepPlan& plan, std::mt19937_64& random);

}  // namespace kvferry::fuzz
