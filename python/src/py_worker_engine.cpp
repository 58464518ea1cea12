// SPDX-License-Identifier: Apache-2.0
#include "py_worker_engine.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/gpu/copy_path.hpp"
#include "kvferry/gpu/cuda_device.hpp"
#include "kvferry/gpu/hip_device.hpp"
#include "kvferry/gpu/host_link.hpp"

#include "py_durations.hpp"
#include "py_tier.hpp"

#include <optional>
#include <utility>

namespace kvferry::python {
namespace {

constexpr double kGigabyte = 1e9;

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
      link.latency = microseconds_of("host_link latency_us", py::cast<double>(value));
    } else if (key == "jitter_us") {
      link.jitter = microseconds_of("host_link jitter_us", py::cast<double>(value));
    } else if (key == "stall_us") {
      link.stall = microseconds_of("host_link stall_us", py::cast<double>(value));
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
                        " stall_us, order, fail_nth, fail_probability, seed");
    }
  }
  return link;
}

std::unique_ptr<gpu::Device> make_device(const PyWorkerArguments& arguments) {
  const gpu::DriverOptions driver{.library = arguments.driver_library};
  if (arguments.backend == "host") return gpu::make_host_device(link_options(arguments.host_link));
  if (arguments.backend == "cuda") return gpu::make_cuda_device(arguments.device_ordinal, driver);
  if (arguments.backend == "hip") return gpu::make_hip_device(arguments.device_ordinal, driver);
  throw ConfigError("back end '" + arguments.backend + "'; allowed: host, cuda, hip");
}

std::optional<gpu::CopyPath> copy_path(const std::string& name) {
  if (name == "auto") return std::nullopt;
  return gpu::copy_path_from(name);
}

std::optional<cpu_tier::PageKind> page_kind(const std::string& name) {
  if (name == "auto") return std::nullopt;
  return cpu_tier::page_kind_from(name);
}

}  // namespace

std::map<std::string, std::string> backends() {
  return {{"host", ""},
          {"cuda", gpu::cuda_availability().why_not},
          {"hip", gpu::hip_availability().why_not}};
}

std::unique_ptr<connector::WorkerEngine> make_worker_engine(const PyWorkerArguments& arguments) {
  std::vector<gpu::BlockGeometry> geometries;
  for (const std::vector<PyFragment>& of_class : arguments.fragments) {
    std::vector<gpu::Fragment> fragments;
    for (const auto& [address, stride_bytes, bytes] : of_class) {
      fragments.push_back({address, stride_bytes, bytes});
    }
    geometries.push_back(gpu::make_block_geometry(std::move(fragments), arguments.num_blocks));
  }
  connector::WorkerOptions options;
  options.rank = RankId(arguments.rank);
  options.world_size = arguments.world_size;
  options.num_chunks = arguments.num_chunks;
  options.slots_per_chunk = arguments.slots_per_chunk;
  options.arena = {.numa_node = arguments.numa_node,
                   .pages = page_kind(arguments.pages),
                   .pinned_piece_bytes = arguments.pinned_piece_bytes,
                   .pinning_bandwidth_limit = arguments.pinning_bandwidth_limit,
                   .allow_smaller_tier = arguments.allow_smaller_tier,
                   .group = {arguments.budget_group, arguments.num_local_arenas},
                   .replicas = {.name = arguments.replica_group,
                                .size = arguments.num_replicas,
                                .index = arguments.replica_index},
                   .shared = shared_tier_wish(arguments.shared_tier)};
  options.probe = arguments.probe;
  options.transfer.staging_bytes = arguments.staging_bytes;
  options.transfer.load_staging_bytes = arguments.load_staging_bytes;
  options.transfer.max_in_flight_bytes = arguments.max_in_flight_bytes;
  options.transfer.store_bandwidth_limit = arguments.store_bandwidth_limit;
  options.transfer.copy_path = copy_path(arguments.copy_path);
  options.transfer_timeout = seconds_of("transfer_timeout_s", arguments.transfer_timeout_s);
  auto device = make_device(arguments);
  // Populating the arena takes seconds; the engine's other threads go on meanwhile.
  py::gil_scoped_release unlocked;
  return std::make_unique<connector::WorkerEngine>(std::move(device), std::move(geometries),
                                                   options);
}

}  // namespace kvferry::python
