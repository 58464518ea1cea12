// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/check.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace kvferry {

namespace {

std::atomic<CheckWitness> the_witness{nullptr};

}  // namespace

CheckWitness set_check_witness(CheckWitness witness) { return the_witness.exchange(witness); }

void check_failed(const char* file, int line, const char* condition,
                  const std::string& message) noexcept {
  std::fprintf(stderr, "kvferry: broken invariant at %s:%d: %s: %s\n", file, line, condition,
               message.c_str());
  std::fflush(stderr);
  if (const CheckWitness witness = the_witness.exchange(nullptr)) {
    witness(std::string(file) + ":" + std::to_string(line) + ": " + condition + ": " + message);
  }
  std::abort();
}

}  // namespace kvferry
