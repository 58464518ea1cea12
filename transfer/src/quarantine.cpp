// SPDX-License-Identifier: Apache-2.0
#include "kvferry/transfer/quarantine.hpp"

namespace kvferry::transfer {

std::string to_string(const Quarantine& quarantine) {
  return "the device was lost at " + gpu::utc_text(quarantine.loss.since) +
         " and its memory is in doubt (" + quarantine.loss.why + "); in quarantine until this" +
         " process has ended: " + std::to_string(quarantine.num_transfers) + " transfers with " +
         std::to_string(quarantine.num_blocks) + " blocks and their slots, " +
         std::to_string(quarantine.staging_bytes) + " bytes of staging memory";
}

}  // namespace kvferry::transfer
