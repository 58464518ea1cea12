// SPDX-License-Identifier: Apache-2.0
#include "trace/time_saved.hpp"

namespace kvferry::bench::trace {

TimeEstimate estimate_time(const ReplayResult& result, const TimeModel& model) {
  const double block_s = static_cast<double>(model.block_bytes) / (1e9 * model.link_gb_per_s);
  TimeEstimate time;
  time.prefill_s = static_cast<double>(result.num_loaded_tokens) / model.prefill_tokens_per_second;
  time.load_s = static_cast<double>(result.num_loads) * block_s;
  time.store_s = static_cast<double>(result.num_stores) * block_s;
  time.saved_s = time.prefill_s - time.load_s;
  return time;
}

}  // namespace kvferry::bench::trace
