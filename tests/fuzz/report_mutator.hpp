// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/wire/step_report.hpp"

#include <random>

namespace kvferry::fuzz {

/// Changes one thing of a report. Numbers are small, so that they meet; now and then one is any.
void mutate(connector::StepReport& report, std::mt19937_64& random);

}  // namespace kvferry::fuzz
