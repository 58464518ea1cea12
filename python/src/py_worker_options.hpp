// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/worker/worker_engine.hpp"
#include "kvferry/gpu/host_link.hpp"

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace kvferry::python {

/// Address, block stride in bytes, bytes.
using PyFragment = std::tuple<std::uintptr_t, std::uint64_t, std::uint64_t>;

/// All options of a Python WorkerEngine.
struct PyWorkerOptions {
  /// The back end: a key of backends().
  std::string backend;
  /// The number of the vendor's device in this process; the host back end ignores it.
  std::uint32_t device_ordinal = 0;
  /// Library of the vendor's driver; empty: the system's.
  std::string driver_library;
  /// Options of the host back end.
  gpu::HostLinkOptions host_link;
  /// Number of blocks in the engine's GPU pool.
  std::uint32_t num_blocks = 0;
  /// Fragments of a block by slab class, in the order of the layers. Their memory outlives the
  /// engine.
  std::vector<std::vector<PyFragment>> fragments;
  connector::WorkerOptions engine;
  /// With an empty path the tier belongs to this engine only.
  connector::SharedTierWish shared;
};

/// Reads the keywords of WorkerEngine(). Throws a ConfigError that names the key.
[[nodiscard]] PyWorkerOptions read_worker_options(const pybind11::dict& given);

}  // namespace kvferry::python
