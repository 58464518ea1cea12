// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "expect/transfer_model.hpp"
#include "measure/copy_row.hpp"
#include "options/pipeline_options.hpp"
#include "report/transfer_row.hpp"

#include <optional>

/// What rows of `copy` and `pipeline` should have, by the performance model.
namespace kvferry::bench {

/// A row of `copy`.
[[nodiscard]] Expected expected_copy(const DeviceProfile& device, const CopyRowOptions& row);

/// The pieces that `pipeline` would use on that device.
[[nodiscard]] std::uint64_t expected_piece_bytes(const DeviceProfile& device,
                                                 const PipelineSettings& settings,
                                                 const PipelineSubject& subject);

/// A row of `pipeline`, alone or beside work. Loads for which no path is forced go the way that the
/// model finds the fastest: the product looks for it by measured times.
[[nodiscard]] Expected expected_pipeline(const DeviceProfile& device,
                                         const PipelineSettings& settings,
                                         const PipelineSubject& subject,
                                         std::optional<gpu::CoRunKind> beside);

/// Writes it into a measured row, and marks the row if it is off (TransferRow::off_model): its rate
/// by more than 20 % of the expected one, its slow-down by more than 20 % of the expected one and
/// also by more than one percent of an iteration, which is what an iteration's median is worth.
void set_expected(TransferRow& row, const Expected& expected);

}  // namespace kvferry::bench
