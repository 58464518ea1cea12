// SPDX-License-Identifier: Apache-2.0
#include "py_worker_engine.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/gpu/host_link.hpp"

#include <chrono>
#include <utility>

namespace kvferry::python {
namespace {

constexpr double kGigabyte = 1e9;

std::chrono::nanoseconds microseconds(double us) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(us * 1e3));
}

gpu::LinkOrder link_order(const std::string& name) {
  if (name == "fifo") return gpu::LinkOrder::kFifo;
  if (name == "shuffled") return gpu::LinkOrder::kShuffled;
  throw ConfigError("host_link order '" + name + "'; allowed: fifo, shuffled");
}

gpu::HostLinkOptions link_options(const py::object& given) {
  gpu::HostLinkOptions link;
  if (given.is_none()) return link;
  for (const auto& [name, value] : py::cast<py::dict>(given)) {
    const auto key = py::cast<std::string>(name);
    if (key == "bandwidth_gb_s") {
      link.h2d_bytes_per_second = link.d2h_bytes_per_second = py::cast<double>(value) * kGigabyte;
    } else if (key == "h2d_gb_s") {
      link.h2d_bytes_per_second = py::cast<double>(value) * kGigabyte;
    } else if (key == "d2h_gb_s") {
      link.d2h_bytes_per_second = py::cast<double>(value) * kGigabyte;
    } else if (key == "latency_us") {
      link.latency = microseconds(py::cast<double>(value));
    } else if (key == "jitter_us") {
      link.jitter = microseconds(py::cast<double>(value));
    } else if (key == "order") {
      link.order = link_order(py::cast<std::string>(value));
    } else if (key == "fail_nth") {
      link.fail_nth = py::cast<std::uint64_t>(value);
    } else if (key == "fail_probability") {
      link.fail_probability = py::cast<double>(value);
    } else if (key == "seed") {
      link.seed = py::cast<std::uint64_t>(value);
    } else {
      throw ConfigError("host_link has no key '" + key +
                        "'; allowed: bandwidth_gb_s, h2d_gb_s, d2h_gb_s, latency_us, jitter_us,"
                        " order, fail_nth, fail_probability, seed");
    }
  }
  return link;
}

}  // namespace

std::unique_ptr<connector::WorkerEngine> make_worker_engine(const PyWorkerArguments& arguments) {
  if (arguments.backend != "host") {
    throw ConfigError("back end '" + arguments.backend + "' is not in this build; it has: host");
  }
  std::vector<gpu::Fragment> fragments;
  for (const auto& [address, stride_bytes, bytes] : arguments.fragments) {
    fragments.push_back({address, stride_bytes, bytes});
  }
  connector::WorkerOptions options;
  options.rank = RankId(arguments.rank);
  options.world_size = arguments.world_size;
  options.num_slots = arguments.num_slots;
  options.transfer.staging_bytes = arguments.staging_bytes;
  options.transfer.max_in_flight_bytes = arguments.max_in_flight_bytes;
  options.transfer_timeout =
      std::chrono::nanoseconds(static_cast<std::int64_t>(arguments.transfer_timeout_s * 1e9));
  auto device = gpu::make_host_device(link_options(arguments.host_link));
  auto geometry = gpu::make_block_geometry(std::move(fragments), arguments.num_blocks);
  // Populating the arena takes seconds; the engine's other threads go on meanwhile.
  py::gil_scoped_release unlocked;
  return std::make_unique<connector::WorkerEngine>(std::move(device), std::move(geometry), options);
}

}  // namespace kvferry::python
