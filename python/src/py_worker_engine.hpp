// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/worker/worker_engine.hpp"

#include <pybind11/pybind11.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace kvferry::python {

namespace py = pybind11;

/// Address, block stride in bytes, bytes.
using PyFragment = std::tuple<std::uintptr_t, std::uint64_t, std::uint64_t>;

/// What a worker is told, as Python gives it.
struct PyWorkerArguments {
  std::string backend;
  /// As the process numbers the vendor's devices; nothing to the host back end.
  std::uint32_t device_ordinal = 0;
  /// Of the vendor's driver; empty: the system's.
  std::string driver_library;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t num_blocks = 0;
  /// By slab class.
  std::vector<std::vector<PyFragment>> fragments;
  std::uint32_t num_chunks = 0;
  std::vector<std::uint32_t> slots_per_chunk;
  std::optional<std::uint32_t> numa_node;
  /// "auto", or the name of a kind of pages.
  std::string pages;
  std::uint64_t pinned_piece_bytes = 0;
  std::uint64_t pinning_bandwidth_limit = 0;
  bool allow_smaller_tier = false;
  /// The same for the engine's ranks on one node; empty: alone.
  std::string budget_group;
  std::uint32_t num_local_arenas = 1;
  /// The same for the ranks of this node that hold the same bytes.
  std::string replica_group;
  std::uint32_t num_replicas = 1;
  std::uint32_t replica_index = 0;
  /// None, or as shared_tier_wish() reads it.
  py::object shared_tier;
  /// Of how the bytes of a block lie on this rank; 0: it shares no tier.
  std::uint64_t probe = 0;
  std::uint64_t staging_bytes = 0;
  std::uint64_t load_staging_bytes = 0;
  std::uint64_t max_in_flight_bytes = 0;
  std::uint64_t store_bandwidth_limit = 0;
  /// "auto", or the name of a copy path.
  std::string copy_path;
  double transfer_timeout_s = 0;
  py::object host_link;
};

/// For each back end why it cannot be had in this process; empty if it can.
[[nodiscard]] std::map<std::string, std::string> backends();

/// Makes the engine of one rank. Throws ConfigError for an unknown back end or copy path.
[[nodiscard]] std::unique_ptr<connector::WorkerEngine> make_worker_engine(
    const PyWorkerArguments& arguments);

}  // namespace kvferry::python
