// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "run_bench.hpp"
#include "subcommand.hpp"

#include <memory>

namespace kvferry::bench {

[[nodiscard]] std::unique_ptr<Subcommand> make_meta();
[[nodiscard]] std::unique_ptr<Subcommand> make_share();
[[nodiscard]] std::unique_ptr<Subcommand> make_pin();
[[nodiscard]] std::unique_ptr<Subcommand> make_trace();
[[nodiscard]] std::unique_ptr<Subcommand> make_fleet();

/// The subcommands of kvferry-lab, which measure parts of kvferry itself.
[[nodiscard]] Program lab_program();

}  // namespace kvferry::bench
