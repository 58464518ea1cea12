// SPDX-License-Identifier: Apache-2.0
#include "subcommands.hpp"

namespace kvferry::bench {

Program bench_program() {
  Program program{.name = "kvferry-bench",
                  .about =
                      "kvferry-bench: what a machine's link between device and host memory can do, "
                      "and how much of it an offload path gets. Every figure is measured on data "
                      "that is verified. GB = 1e9 bytes, KiB = 1024 bytes, us = microseconds.",
                  .subcommands = {}};
  program.subcommands.push_back(make_link());
  program.subcommands.push_back(make_copy());
  program.subcommands.push_back(make_pipeline());
  program.subcommands.push_back(make_expect());
  return program;
}

}  // namespace kvferry::bench
