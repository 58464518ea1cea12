// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/memlock_limit.hpp"

#include <sys/resource.h>

namespace kvferry::cpu_tier {

std::optional<std::uint64_t> memlock_limit_bytes() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::nullopt;
  }
  return limit.rlim_cur;
}

std::optional<std::string> memlock_warning(std::uint64_t bytes,
                                           std::optional<std::uint64_t> limit_bytes) {
  if (!limit_bytes || bytes <= *limit_bytes) return std::nullopt;
  return std::to_string(bytes) + " bytes are to be pinned, but RLIMIT_MEMLOCK is " +
         std::to_string(*limit_bytes) +
         ": GPU drivers ignore that limit; if the device refuses memory, lift it (ulimit -l "
         "unlimited, "
         "docker --ulimit memlock=-1, systemd LimitMEMLOCK=infinity)";
}

}  // namespace kvferry::cpu_tier
