// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/scheduler_engine.hpp"
#include "kvferry/connector/worker/worker_engine.hpp"
#include "kvferry/cpu_tier/peers/tier_directory.hpp"
#include "kvferry/recorder/recorder.hpp"

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace kvferry::python {

/// All options of a Python SchedulerEngine.
struct PySchedulerOptions {
  connector::SchedulerOptions engine;
  /// Packed bytes of a block, by slab class (the largest first) and rank.
  std::vector<std::vector<std::uint64_t>> slot_bytes;
  /// Slots in a chunk, by slab class.
  std::vector<std::uint32_t> slots_per_chunk;
  /// For each rank: how many ranks share its arena, and its index among them.
  std::vector<std::tuple<std::uint32_t, std::uint32_t>> replicas;
  /// For each KV cache group: which tokens a token sees, for TokenReach::named().
  std::vector<std::tuple<std::string, std::uint32_t>> group_reaches;
  /// For each KV cache group: the slab class of its blocks.
  std::vector<std::uint32_t> group_classes;
  /// For each KV cache group: the number of the engine's hashes that one of its blocks covers.
  std::vector<std::uint32_t> group_hashes_per_block;
  /// For each KV cache group: KvGroup::unseen_tokens. Empty: 0 for all groups.
  std::vector<std::uint32_t> group_unseen_tokens;
  /// A file that is made for the recording of the engine (recorder::Recorder), and the bytes of its
  /// ring. Empty: nothing is recorded.
  std::string recorder_path;
  std::uint64_t recorder_bytes = recorder::Recorder::kDefaultRingBytes;
  /// With an empty path the tier belongs to this engine only.
  connector::SharedTierWish shared;
  /// This engine's identity in the shared tier, without the name.
  cpu_tier::TierDirectory::Identity identity;
  std::string model;  ///< The model's name, for who reads the recording.
  /// In the recordings of the engine and of its ranks the same, and in no other.
  std::string start;
};

/// Reads the keywords of SchedulerEngine(). Throws a ConfigError that names the key.
[[nodiscard]] PySchedulerOptions read_scheduler_options(const pybind11::dict& given);

}  // namespace kvferry::python
