// SPDX-License-Identifier: Apache-2.0
#include "lab_subcommands.hpp"

namespace kvferry::bench {

Program lab_program() {
  Program program{.name = "kvferry-lab",
                  .about =
                      "kvferry-lab: what parts of kvferry cost, for a change of them. Every answer "
                      "and every byte is "
                      "verified. GB = 1e9 bytes, KiB = 1024 bytes, us = microseconds.",
                  .subcommands = {}};
  program.subcommands.push_back(make_meta());
  program.subcommands.push_back(make_share());
  program.subcommands.push_back(make_pin());
  program.subcommands.push_back(make_trace());
  program.subcommands.push_back(make_fleet());
  return program;
}

}  // namespace kvferry::bench
