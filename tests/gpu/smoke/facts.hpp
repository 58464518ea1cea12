// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fact_log.hpp"
#include "smoke_device.hpp"

#include <string>
#include <vector>

namespace kvferry::smoke {

enum class Effort : bool { kFull, kQuick };

/// Facts that share a process: what poisons the context takes only its own group along.
struct FactGroup {
  std::string name;
  void (*settle)(FactLog& log, SmokeDevice& device, Effort effort);
};

/// In the order in which they are settled; what poisons least comes first.
[[nodiscard]] const std::vector<FactGroup>& fact_groups();

void settle_device(FactLog& log, SmokeDevice& device, Effort effort);
void settle_copies(FactLog& log, SmokeDevice& device, Effort effort);
void settle_kernels(FactLog& log, SmokeDevice& device, Effort effort);
void settle_held(FactLog& log, SmokeDevice& device, Effort effort);
void settle_bulk(FactLog& log, SmokeDevice& device, Effort effort);
void settle_legacy(FactLog& log, SmokeDevice& device, Effort effort);
void settle_border(FactLog& log, SmokeDevice& device, Effort effort);

}  // namespace kvferry::smoke
