// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "expect/transfer_model.hpp"
#include "measure/copy_row.hpp"
#include "options/pipeline_options.hpp"
#include "report/transfer_row.hpp"

#include <optional>

/// The values that rows of `copy` and `pipeline` should have, by the performance model.
namespace kvferry::bench {

/// The expectation for a row of `copy`.
[[nodiscard]] Expected expected_copy(const DeviceProfile& device, const CopyRowOptions& row);

/// The piece size that `pipeline` would use on that device.
[[nodiscard]] std::uint64_t expected_piece_bytes(const DeviceProfile& device,
                                                 const PipelineSettings& settings,
                                                 const PipelineSubject& subject);

/// The expectation for a row of `pipeline`, alone or with other work. If no path of loads is
/// forced, the model takes the fastest one, as the product does by measured times.
[[nodiscard]] Expected expected_pipeline(const DeviceProfile& device,
                                         const PipelineSettings& settings,
                                         const PipelineSubject& subject,
                                         std::optional<gpu::CoRunKind> beside);

/// Writes the expectation into a measured row, and marks the row if it differs too much
/// (TransferRow::off_model): if its rate differs by more than 20 %, or its slow-down by more than
/// 20 % and also by more than one percent of an iteration, the precision of an iteration's median.
void set_expected(TransferRow& row, const Expected& expected);

}  // namespace kvferry::bench
