// SPDX-License-Identifier: Apache-2.0
#include "fake_control.hpp"

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>

namespace kvferry::fakes {
namespace {

// A driver that everybody finds hides that somebody looks for it in the wrong place: torch opens
// the vendors' libraries RTLD_LOCAL, and so do we.
__attribute__((constructor)) void refuse_to_be_global() {
  void* const process = ::dlopen(nullptr, RTLD_NOW);
  if (process == nullptr || ::dlsym(process, kFakeControlSymbol) == nullptr) return;
  std::fprintf(stderr, "fake driver: open it RTLD_LOCAL, not RTLD_GLOBAL or linked\n");
  std::abort();
}

}  // namespace
}  // namespace kvferry::fakes
