// SPDX-License-Identifier: Apache-2.0
#include "py_worker_options.hpp"

#include "kvferry/gpu/copy_path.hpp"

#include "py_options.hpp"
#include "py_tier_options.hpp"

#include <chrono>
#include <memory>
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
using gpu::InjectionOptions;
using transfer::TransferOptions;

double gigabytes_per_second(const OptionValue& value) {
  constexpr double kGigabyte = 1e9;
  return value.number() * kGigabyte;
}

std::chrono::nanoseconds microseconds(const OptionValue& value) { return value.microseconds(); }

std::shared_ptr<recorder::Recorder> recorder_of(const OptionValue& value) {
  return value.shared<recorder::Recorder>("a Recorder");
}

gpu::LinkOrder link_order(const OptionValue& value) {
  const std::string name = value.text();
  if (name == "fifo") return gpu::LinkOrder::kFifo;
  if (name == "shuffled") return gpu::LinkOrder::kShuffled;
  value.refuse("'fifo' or 'shuffled'");
}

constexpr OptionKey<HostLinkOptions> kLinkKeys[] = {
    {"h2d_gb_s", set_field_by<gigabytes_per_second, &HostLinkOptions::h2d_bytes_per_second>},
    {"d2h_gb_s", set_field_by<gigabytes_per_second, &HostLinkOptions::d2h_bytes_per_second>},
    {"latency_us", set_field_by<microseconds, &HostLinkOptions::latency>},
    {"jitter_us", set_field_by<microseconds, &HostLinkOptions::jitter>},
    {"stall_us", set_field_by<microseconds, &HostLinkOptions::stall>},
    {"order", set_field_by<link_order, &HostLinkOptions::order>},
    {"fail_nth", set_field<&HostLinkOptions::fail_nth>},
    {"fail_probability", set_field<&HostLinkOptions::fail_probability>},
    {"inject_probability", set_field<&HostLinkOptions::inject, &InjectionOptions::probability>},
    {"inject_log", set_field<&HostLinkOptions::inject, &InjectionOptions::log_file>},
    {"seed", set_field<&HostLinkOptions::seed>},
};

HostLinkOptions host_link(const OptionValue& value) {
  return read_options<HostLinkOptions>(value.name(), kLinkKeys, value.mapping());
}

transfer::Verification verification(const OptionValue& value) {
  const std::string name = value.text();
  if (name == "off") return transfer::Verification::kOff;
  return name == "sampled" ? transfer::Verification::kSampled : transfer::Verification::kAll;
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
void set_engine(PyWorkerOptions& options, const OptionValue& value) {
  set_field<&PyWorkerOptions::engine, Members...>(options, value);
}
template <auto... Members>
void set_arena(PyWorkerOptions& options, const OptionValue& value) {
  set_field<&PyWorkerOptions::engine, &WorkerOptions::arena, Members...>(options, value);
}
template <auto Member>
void set_transfer(PyWorkerOptions& options, const OptionValue& value) {
  set_field<&PyWorkerOptions::engine, &WorkerOptions::transfer, Member>(options, value);
}
template <auto Member>
void set_file(PyWorkerOptions& options, const OptionValue& value) {
  set_field<&PyWorkerOptions::shared, &SharedTierWish::tier, Member>(options, value);
}

constexpr OptionKey<PyWorkerOptions> kKeys[] = {
    {"backend", set_field<&PyWorkerOptions::backend>, Presence::kRequired},
    {"device_ordinal", set_field<&PyWorkerOptions::device_ordinal>},
    {"driver_library", set_field<&PyWorkerOptions::driver_library>},
    {"host_link", set_field_by<host_link, &PyWorkerOptions::host_link>},
    {"num_blocks", set_field<&PyWorkerOptions::num_blocks>, Presence::kRequired},
    {"fragments", set_field<&PyWorkerOptions::fragments>, Presence::kRequired},
    {"rank", set_engine<&WorkerOptions::rank>, Presence::kRequired},
    {"world_size", set_engine<&WorkerOptions::world_size>, Presence::kRequired},
    {"num_chunks", set_engine<&WorkerOptions::num_chunks>, Presence::kRequired},
    {"slots_per_chunk", set_engine<&WorkerOptions::slots_per_chunk>, Presence::kRequired},
    {"slot_bytes", set_engine<&WorkerOptions::slot_bytes>},
    {"probe", set_engine<&WorkerOptions::probe>},
    {"transfer_timeout_s", set_engine<&WorkerOptions::transfer_timeout>, Presence::kRequired},
    {"numa_node", set_engine<&WorkerOptions::numa_node>},
    {"pages", set_field_by<page_kind, &PyWorkerOptions::engine, &WorkerOptions::arena,
                           &ArenaOptions::pages>},
    {"start_chunks", set_arena<&ArenaOptions::start_chunks>},
    {"pinned_piece_bytes", set_arena<&ArenaOptions::pinned_piece_bytes>},
    {"pinning_bandwidth_limit", set_engine<&WorkerOptions::pinning_bandwidth_limit>},
    {"allow_smaller_tier", set_field_by<shortage, &PyWorkerOptions::engine, &WorkerOptions::arena,
                                        &ArenaOptions::shortage>},
    {"budget_group", set_arena<&ArenaOptions::group, &ClaimGroup::name>},
    {"num_local_arenas", set_arena<&ArenaOptions::group, &ClaimGroup::num_ranks>},
    {"replica_group", set_engine<&WorkerOptions::replicas, &ReplicaGroup::name>},
    {"num_replicas", set_engine<&WorkerOptions::replicas, &ReplicaGroup::size>},
    {"replica_index", set_engine<&WorkerOptions::replicas, &ReplicaGroup::index>},
    {"staging_bytes", set_transfer<&TransferOptions::staging_bytes>, Presence::kRequired},
    {"load_staging_bytes", set_transfer<&TransferOptions::load_staging_bytes>},
    {"max_in_flight_bytes", set_transfer<&TransferOptions::max_in_flight_bytes>,
     Presence::kRequired},
    {"store_bandwidth_limit", set_transfer<&TransferOptions::store_bandwidth_limit>},
    {"copy_path", set_field_by<copy_path, &PyWorkerOptions::engine, &WorkerOptions::transfer,
                               &TransferOptions::copy_path>},
    {"verify", set_field_by<verification, &PyWorkerOptions::engine, &WorkerOptions::transfer,
                            &TransferOptions::verify>},
    {"recorder", set_field_by<recorder_of, &PyWorkerOptions::engine, &WorkerOptions::recorder>},
    {"scrub_bandwidth", set_transfer<&TransferOptions::scrub_bandwidth>},
    {"shared_path", set_file<&SharedTierOptions::path>},
    {"shared_capacity_bytes", set_file<&SharedTierOptions::capacity_bytes>},
    {"shared_chunk_bytes", set_file<&SharedTierOptions::chunk_bytes>},
    {"shared_keep", set_field_by<at_exit, &PyWorkerOptions::shared, &SharedTierWish::tier,
                                 &SharedTierOptions::at_exit>},
    {"shared_instance", set_field<&PyWorkerOptions::shared, &SharedTierWish::instance>},
};

}  // namespace

PyWorkerOptions read_worker_options(const py::dict& given) {
  auto options = read_options<PyWorkerOptions>("WorkerEngine", kKeys, given);
  options.engine.shared = shared_tier_wish(std::move(options.shared), options.engine.world_size);
  return options;
}

}  // namespace kvferry::python
