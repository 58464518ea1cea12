// SPDX-License-Identifier: Apache-2.0
#include "subcommands.hpp"

#include <iostream>

int main(int argc, char** argv) {
  return kvferry::bench::run_bench(kvferry::bench::bench_program(), {argv + 1, argv + argc},
                                   std::cout, std::cerr);
}
