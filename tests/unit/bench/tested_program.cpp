// SPDX-License-Identifier: Apache-2.0
#include "program.hpp"
#include "subcommands.hpp"

namespace kvferry::bench {

Program tested_program() { return bench_program(); }

}  // namespace kvferry::bench
