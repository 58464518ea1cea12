// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/scheduler_engine.hpp"
#include "kvferry/connector/worker/worker_engine.hpp"
#include "kvferry/cpu_tier/peers/tier_directory.hpp"

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace kvferry::python {

/// All that a SchedulerEngine of Python's is made of.
struct PySchedulerOptions {
  connector::SchedulerOptions engine;
  /// Packed bytes of a block, by slab class (the largest first) and rank.
  std::vector<std::vector<std::uint64_t>> slot_bytes;
  /// By slab class.
  std::vector<std::uint32_t> slots_per_chunk;
  /// Of each rank: how many ranks share one arena with it, and which of them it is.
  std::vector<std::tuple<std::uint32_t, std::uint32_t>> replicas;
  /// Of each KV cache group: which tokens a token sees, as TokenReach::named() takes it.
  std::vector<std::tuple<std::string, std::uint32_t>> group_reaches;
  /// Of each KV cache group: the slab class of its blocks.
  std::vector<std::uint32_t> group_classes;
  /// Of each KV cache group: hashes of the engine that one of its blocks covers.
  std::vector<std::uint32_t> group_hashes_per_block;
  /// Of each KV cache group: KvGroup::unseen_tokens. Empty: none of any.
  std::vector<std::uint32_t> group_unseen_tokens;
  /// With an empty path the tier is this engine's alone.
  connector::SharedTierWish shared;
  /// Of this engine in the shared tier, but for the name.
  cpu_tier::TierDirectory::Identity identity;
};

/// Reads the keywords of SchedulerEngine(). Throws ConfigError naming the key.
[[nodiscard]] PySchedulerOptions read_scheduler_options(const pybind11::dict& given);

}  // namespace kvferry::python
