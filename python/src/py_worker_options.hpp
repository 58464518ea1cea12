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

/// All that a WorkerEngine of Python's is made of.
struct PyWorkerOptions {
  /// A key of backends().
  std::string backend;
  /// As the process numbers the vendor's devices; nothing to the host back end.
  std::uint32_t device_ordinal = 0;
  /// Of the vendor's driver; empty: the system's.
  std::string driver_library;
  /// Of the host back end.
  gpu::HostLinkOptions host_link;
  /// Of the engine's GPU pool.
  std::uint32_t num_blocks = 0;
  /// By slab class, in the order of the layers. Their memory outlives the engine.
  std::vector<std::vector<PyFragment>> fragments;
  connector::WorkerOptions engine;
  /// With an empty path the tier is this engine's alone.
  connector::SharedTierWish shared;
};

/// Reads the keywords of WorkerEngine(). Throws ConfigError naming the key.
[[nodiscard]] PyWorkerOptions read_worker_options(const pybind11::dict& given);

}  // namespace kvferry::python
