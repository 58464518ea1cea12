// SPDX-License-Identifier: Apache-2.0
#include "run_bench.hpp"

#include <iostream>

int main(int argc, char** argv) {
  return kvferry::bench::run_bench({argv + 1, argv + argc}, std::cout, std::cerr);
}
