// SPDX-License-Identifier: Apache-2.0
#include "lab_subcommands.hpp"
#include "program.hpp"

namespace kvferry::bench {

Program tested_program() { return lab_program(); }

}  // namespace kvferry::bench
