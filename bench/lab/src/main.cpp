// SPDX-License-Identifier: Apache-2.0
#include "lab_subcommands.hpp"

#include <iostream>

int main(int argc, char** argv) {
  return kvferry::bench::run_bench(kvferry::bench::lab_program(), {argv + 1, argv + argc},
                                   std::cout, std::cerr);
}
