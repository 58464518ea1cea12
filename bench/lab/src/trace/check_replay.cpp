// SPDX-License-Identifier: Apache-2.0
#include "trace/check_replay.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvferry::bench::trace {

void check_replay(Verifier& verifier, const Trace& trace, std::uint32_t capacity,
                  const ReplayResult& result, std::string_view what) {
  const auto check = [&](std::uint64_t found, std::uint64_t expected, const char* count) {
    verifier.check_count(found, expected, fmt::format("{}, {} blocks: {}", what, capacity, count));
  };
  check(result.num_accesses, trace.num_accesses(), "accesses");
  check(result.num_hits + result.num_misses, result.num_accesses, "hits and misses");
  check(result.num_stores - result.num_evictions, result.num_resident, "stored and not evicted");
  check(std::min<std::uint64_t>(result.num_resident, capacity), result.num_resident,
        "resident that fit");
  check(std::min(result.num_loads, result.num_hits), result.num_loads, "loads that were hits");
}

}  // namespace kvferry::bench::trace
