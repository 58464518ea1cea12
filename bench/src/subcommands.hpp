// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "run_bench.hpp"
#include "subcommand.hpp"

#include <memory>

namespace kvferry::bench {

[[nodiscard]] std::unique_ptr<Subcommand> make_link();
[[nodiscard]] std::unique_ptr<Subcommand> make_copy();
[[nodiscard]] std::unique_ptr<Subcommand> make_pipeline();
[[nodiscard]] std::unique_ptr<Subcommand> make_expect();

/// The subcommands of kvferry-bench, which measure a machine.
[[nodiscard]] Program bench_program();

}  // namespace kvferry::bench
