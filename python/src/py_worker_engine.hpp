// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/worker_engine.hpp"

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace kvferry::python {

namespace py = pybind11;

/// What a worker is told, as Python gives it.
struct PyWorkerArguments {
  std::string backend;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t num_blocks = 0;
  std::vector<std::tuple<std::uintptr_t, std::uint64_t, std::uint64_t>> fragments;
  std::uint32_t num_slots = 0;
  std::uint64_t staging_bytes = 0;
  std::uint64_t max_in_flight_bytes = 0;
  double transfer_timeout_s = 0;
  py::object host_link;
};

/// Makes the engine of one rank. Throws ConfigError for a back end that is not built in.
[[nodiscard]] std::unique_ptr<connector::WorkerEngine> make_worker_engine(
    const PyWorkerArguments& arguments);

}  // namespace kvferry::python
