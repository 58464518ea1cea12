// SPDX-License-Identifier: Apache-2.0
#include "driver/driver_context.hpp"
#include "driver/driver_stream.hpp"

#include <algorithm>

namespace kvferry::gpu {

bool DriverStream::batches(CopyCall call, std::size_t num_runs) const {
  const DriverTraits& traits = context_.api().traits();
  if (call == CopyCall::kPerRun) return false;
  if (call == CopyCall::kDeviceDefault && (num_runs < 2 || !traits.batches_by_default)) {
    return false;
  }
  MutexLock lock(mutex_);
  return !batch_refused_ && traits.max_batch_runs > 0;
}

// A failed batch may have begun, so it counts as an operation that failed. But the driver returns
// "not supported" before anything runs.
void DriverStream::copy_in_batches(CopyDirection direction, std::span<const CopyRun> runs) {
  const std::size_t most = std::min(context_.api().traits().max_batch_runs, kMaxBatchRuns);
  Begun begun = Begun::kNo;
  while (!runs.empty()) {
    const auto batch = runs.first(std::min(most, runs.size()));
    const DriverResult result =
        context_.note(context_.api().copy_batch(direction, batch, stream_), "copy a batch");
    if (result.status == DriverStatus::kNotSupported) {
      {
        MutexLock lock(mutex_);
        batch_refused_ = true;
      }
      copy_one_by_one(direction, runs, begun);
      return;
    }
    mark_submitted();
    if (!result.ok()) {
      fail(context_.message(result, "copy a batch"));
      return;
    }
    begun = Begun::kYes;
    runs = runs.subspan(batch.size());
  }
}

void DriverStream::copy_one_by_one(CopyDirection direction, std::span<const CopyRun> runs,
                                   Begun begun) {
  for (const CopyRun& run : runs) {
    const DriverResult result = context_.note(context_.api().copy(direction, run, stream_), "copy");
    if (begun == Begun::kNo) context_.check(result, "copy");
    mark_submitted();
    if (!result.ok()) {
      fail(context_.message(result, "copy"));
      return;
    }
    begun = Begun::kYes;
  }
}

}  // namespace kvferry::gpu
