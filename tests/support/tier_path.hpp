// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/peers/shared_tier.hpp"

#include "complaint.hpp"
#include "made_up_machine.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

namespace kvferry::cpu_tier {

/// A path in /dev/shm for a tier, whose file goes with it, on a machine with memory enough.
class TierPath {
 public:
  static constexpr std::uint64_t kChunkBytes = std::uint64_t{64} << 10U;
  static constexpr std::uint32_t kNumChunks = 16;

  TierPath() {
    machine.write_available(std::uint64_t{1} << 20U);
    boot("this-boot");
  }
  ~TierPath() { ::unlink(path.c_str()); }
  TierPath(const TierPath&) = delete;
  TierPath& operator=(const TierPath&) = delete;

  void boot(const std::string& id) const {
    machine.write_proc("sys/kernel/random/boot_id", id + "\n");
  }
  [[nodiscard]] SharedTierOptions options(std::uint32_t num_ranks = 1) const {
    return {.path = path,
            .capacity_bytes = num_ranks * kNumChunks * kChunkBytes,
            .num_ranks = num_ranks,
            .chunk_bytes = kChunkBytes,
            .patience = std::chrono::seconds(60),
            .machine = machine.root};
  }
  [[nodiscard]] SharedTierOptions kept(std::uint32_t num_ranks = 1) const {
    SharedTierOptions of = options(num_ranks);
    of.at_exit = AtExit::kKeep;
    return of;
  }
  [[nodiscard]] bool exists() const { return inode() != 0; }
  /// Of what the path leads to now; 0: nothing.
  [[nodiscard]] std::uint64_t inode() const {
    struct stat status {};
    return ::lstat(path.c_str(), &status) == 0 ? status.st_ino : 0;
  }

  const std::filesystem::path path = "/dev/shm/kvferry_tier_test_" + std::to_string(::getpid());
  const MadeUpMachine machine;
};

}  // namespace kvferry::cpu_tier
