// SPDX-License-Identifier: Apache-2.0
#include "py_worker_options.hpp"

#include "kvferry/gpu/copy_path.hpp"

#include "py_options.hpp"
#include "py_tier_options.hpp"

#include <chrono>
#include <optional>
#include <string>
#include <utility>

namespace kvferry::python {
namespace {

using connector::SharedTierWish;
using connector::WorkerOptions;
using cpu_tier::ArenaOptions;
using cpu_tier::ClaimGroup;
using cpu_tier::ReplicaGroup;
using cpu_tier::SharedTierOptions;
using gpu::HostLinkOptions;
using transfer::TransferOptions;

double gigabytes_per_second(const OptionValue& value) {
  constexpr double kGigabyte = 1e9;
  return value.number() * kGigabyte;
}

std::chrono::nanoseconds microseconds(const OptionValue& value) { return value.microseconds(); }

gpu::LinkOrder link_order(const OptionValue& value) {
  const std::string name = value.text();
  if (name == "fifo") return gpu::LinkOrder::kFifo;
  if (name == "shuffled") return gpu::LinkOrder::kShuffled;
  value.refuse("'fifo' or 'shuffled'");
}

constexpr OptionKey<HostLinkOptions> kLinkKeys[] = {
    {"h2d_gb_s", field_by<gigabytes_per_second, &HostLinkOptions::h2d_bytes_per_second>},
    {"d2h_gb_s", field_by<gigabytes_per_second, &HostLinkOptions::d2h_bytes_per_second>},
    {"latency_us", field_by<microseconds, &HostLinkOptions::latency>},
    {"jitter_us", field_by<microseconds, &HostLinkOptions::jitter>},
    {"stall_us", field_by<microseconds, &HostLinkOptions::stall>},
    {"order", field_by<link_order, &HostLinkOptions::order>},
    {"fail_nth", field<&HostLinkOptions::fail_nth>},
    {"fail_probability", field<&HostLinkOptions::fail_probability>},
    {"seed", field<&HostLinkOptions::seed>},
};

HostLinkOptions host_link(const OptionValue& value) {
  return read_options<HostLinkOptions>(value.name(), kLinkKeys, value.mapping());
}

std::optional<gpu::CopyPath> copy_path(const OptionValue& value) {
  const std::string name = value.text();
  if (name == "auto") return std::nullopt;
  return gpu::copy_path_from(name);
}

cpu_tier::Shortage shortage(const OptionValue& value) {
  return value.flag() ? cpu_tier::Shortage::kTakeLess : cpu_tier::Shortage::kRefuse;
}

template <auto... Members>
constexpr auto engine_field = field<&PyWorkerOptions::engine, Members...>;
template <auto... Members>
constexpr auto arena_field = field<&PyWorkerOptions::engine, &WorkerOptions::arena, Members...>;
template <auto Member>
constexpr auto transfer_field = field<&PyWorkerOptions::engine, &WorkerOptions::transfer, Member>;
template <auto Member>
constexpr auto file_field = field<&PyWorkerOptions::shared, &SharedTierWish::tier, Member>;

constexpr OptionKey<PyWorkerOptions> kKeys[] = {
    {"backend", field<&PyWorkerOptions::backend>, Presence::kRequired},
    {"device_ordinal", field<&PyWorkerOptions::device_ordinal>},
    {"driver_library", field<&PyWorkerOptions::driver_library>},
    {"host_link", field_by<host_link, &PyWorkerOptions::host_link>},
    {"num_blocks", field<&PyWorkerOptions::num_blocks>, Presence::kRequired},
    {"fragments", field<&PyWorkerOptions::fragments>, Presence::kRequired},
    {"rank", engine_field<&WorkerOptions::rank>, Presence::kRequired},
    {"world_size", engine_field<&WorkerOptions::world_size>, Presence::kRequired},
    {"num_chunks", engine_field<&WorkerOptions::num_chunks>, Presence::kRequired},
    {"slots_per_chunk", engine_field<&WorkerOptions::slots_per_chunk>, Presence::kRequired},
    {"probe", engine_field<&WorkerOptions::probe>},
    {"transfer_timeout_s", engine_field<&WorkerOptions::transfer_timeout>, Presence::kRequired},
    {"numa_node", engine_field<&WorkerOptions::numa_node>},
    {"pages",
     field_by<page_kind, &PyWorkerOptions::engine, &WorkerOptions::arena, &ArenaOptions::pages>},
    {"pinned_piece_bytes", arena_field<&ArenaOptions::pinned_piece_bytes>},
    {"pinning_bandwidth_limit", engine_field<&WorkerOptions::pinning_bandwidth_limit>},
    {"allow_smaller_tier",
     field_by<shortage, &PyWorkerOptions::engine, &WorkerOptions::arena, &ArenaOptions::shortage>},
    {"budget_group", arena_field<&ArenaOptions::group, &ClaimGroup::name>},
    {"num_local_arenas", arena_field<&ArenaOptions::group, &ClaimGroup::num_ranks>},
    {"replica_group", engine_field<&WorkerOptions::replicas, &ReplicaGroup::name>},
    {"num_replicas", engine_field<&WorkerOptions::replicas, &ReplicaGroup::size>},
    {"replica_index", engine_field<&WorkerOptions::replicas, &ReplicaGroup::index>},
    {"staging_bytes", transfer_field<&TransferOptions::staging_bytes>, Presence::kRequired},
    {"load_staging_bytes", transfer_field<&TransferOptions::load_staging_bytes>},
    {"max_in_flight_bytes", transfer_field<&TransferOptions::max_in_flight_bytes>,
     Presence::kRequired},
    {"store_bandwidth_limit", transfer_field<&TransferOptions::store_bandwidth_limit>},
    {"copy_path", field_by<copy_path, &PyWorkerOptions::engine, &WorkerOptions::transfer,
                           &TransferOptions::copy_path>},
    {"shared_path", file_field<&SharedTierOptions::path>},
    {"shared_capacity_bytes", file_field<&SharedTierOptions::capacity_bytes>},
    {"shared_chunk_bytes", file_field<&SharedTierOptions::chunk_bytes>},
    {"shared_keep", field_by<at_exit, &PyWorkerOptions::shared, &SharedTierWish::tier,
                             &SharedTierOptions::at_exit>},
    {"shared_instance", field<&PyWorkerOptions::shared, &SharedTierWish::instance>},
};

}  // namespace

PyWorkerOptions read_worker_options(const py::dict& given) {
  auto options = read_options<PyWorkerOptions>("WorkerEngine", kKeys, given);
  options.engine.shared = shared_tier_wish(std::move(options.shared), options.engine.world_size);
  return options;
}

}  // namespace kvferry::python
