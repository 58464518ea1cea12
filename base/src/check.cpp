// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/check.hpp"

#include <cstdio>
#include <cstdlib>

namespace kvferry {

void check_failed(const char* file, int line, const char* condition,
                  const std::string& message) noexcept {
  std::fprintf(stderr, "kvferry: broken invariant at %s:%d: %s: %s\n", file, line, condition,
               message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace kvferry
