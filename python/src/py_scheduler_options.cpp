// SPDX-License-Identifier: Apache-2.0
#include "py_scheduler_options.hpp"

#include "kvferry/base/error.hpp"

#include "py_options.hpp"
#include "py_tier_options.hpp"

#include <random>
#include <string>

namespace kvferry::python {
namespace {

using connector::SchedulerOptions;
using connector::SharedTierWish;
using cpu_tier::SharedTierOptions;
using cpu_tier::TierOptions;
using Identity = cpu_tier::TierDirectory::Identity;

/// Tells this engine's plans from those of any other, also after a restart.
connector::DomainId random_domain() {
  std::random_device source;
  return connector::DomainId(static_cast<std::uint32_t>(source()));
}

cpu_tier::Eviction eviction(const OptionValue& value) {
  return cpu_tier::eviction_from(value.text());
}

cpu_tier::Admission admission(const OptionValue& value) {
  return cpu_tier::admission_from(value.text());
}

connector::LaterTurns later_turns(const OptionValue& value) {
  return value.flag() ? connector::LaterTurns::kStored : connector::LaterTurns::kNotStored;
}

template <auto... Members>
constexpr auto engine_field = field<&PySchedulerOptions::engine, Members...>;
template <auto Read, auto... Members>
constexpr auto engine_field_by = field_by<Read, &PySchedulerOptions::engine, Members...>;
template <auto Member>
constexpr auto file_field = field<&PySchedulerOptions::shared, &SharedTierWish::tier, Member>;
template <auto Member>
constexpr auto identity_field = field<&PySchedulerOptions::identity, Member>;

constexpr OptionKey<PySchedulerOptions> kKeys[] = {
    {"world_size", engine_field<&SchedulerOptions::world_size>, Presence::kRequired},
    {"block_tokens", engine_field<&SchedulerOptions::block_tokens>, Presence::kRequired},
    {"num_blocks", engine_field<&SchedulerOptions::num_blocks>, Presence::kRequired},
    {"max_chunks", engine_field<&SchedulerOptions::max_chunks>, Presence::kRequired},
    {"slot_bytes", field<&PySchedulerOptions::slot_bytes>, Presence::kRequired},
    {"slots_per_chunk", field<&PySchedulerOptions::slots_per_chunk>, Presence::kRequired},
    {"replicas", field<&PySchedulerOptions::replicas>, Presence::kRequired},
    {"group_reaches", field<&PySchedulerOptions::group_reaches>, Presence::kRequired},
    {"group_classes", field<&PySchedulerOptions::group_classes>, Presence::kRequired},
    {"eviction", engine_field_by<eviction, &SchedulerOptions::tier, &TierOptions::eviction>,
     Presence::kRequired},
    {"admission", engine_field_by<admission, &SchedulerOptions::tier, &TierOptions::admission>,
     Presence::kRequired},
    {"max_awaited_share", engine_field<&SchedulerOptions::tier, &TierOptions::max_awaited_share>,
     Presence::kRequired},
    {"key_events", engine_field<&SchedulerOptions::tier, &TierOptions::key_events>,
     Presence::kRequired},
    {"store_later_turns", engine_field_by<later_turns, &SchedulerOptions::later_turns>,
     Presence::kRequired},
    {"max_load_wait_s", engine_field<&SchedulerOptions::max_load_wait>, Presence::kRequired},
    {"rank_timeout_s", engine_field<&SchedulerOptions::rank_timeout>, Presence::kRequired},
    {"load_timeout_s", engine_field<&SchedulerOptions::load_timeout>, Presence::kRequired},
    {"shared_path", file_field<&SharedTierOptions::path>},
    {"shared_capacity_bytes", file_field<&SharedTierOptions::capacity_bytes>},
    {"shared_chunk_bytes", file_field<&SharedTierOptions::chunk_bytes>},
    {"shared_keep", field_by<at_exit, &PySchedulerOptions::shared, &SharedTierWish::tier,
                             &SharedTierOptions::at_exit>},
    {"shared_instance", field<&PySchedulerOptions::shared, &SharedTierWish::instance>},
    {"shared_weight", identity_field<&Identity::weight>},
    {"name_space", identity_field<&Identity::name_space>},
    {"most_chunks", identity_field<&Identity::most_chunks>},
    {"grace_s", identity_field<&Identity::grace>},
};

void expect_pairs(const char* what, std::size_t size, const char* other, std::size_t other_size) {
  if (size == other_size) return;
  throw ConfigError(std::string(what) + " has " + std::to_string(size) + " entries and " + other +
                    " has " + std::to_string(other_size) + "; expected as many");
}

}  // namespace

PySchedulerOptions read_scheduler_options(const py::dict& given) {
  auto options = read_options<PySchedulerOptions>("SchedulerEngine", kKeys, given);
  SchedulerOptions& engine = options.engine;
  engine.domain = random_domain();
  expect_pairs("slot_bytes", options.slot_bytes.size(), "slots_per_chunk",
               options.slots_per_chunk.size());
  for (std::size_t i = 0; i < options.slot_bytes.size(); ++i) {
    engine.classes.push_back({options.slots_per_chunk[i], options.slot_bytes[i]});
  }
  for (const auto& [size, index] : options.replicas) engine.replicas.push_back({size, index});
  expect_pairs("group_reaches", options.group_reaches.size(), "group_classes",
               options.group_classes.size());
  engine.groups.clear();
  for (std::size_t i = 0; i < options.group_reaches.size(); ++i) {
    const auto& [kind, tokens] = options.group_reaches[i];
    engine.groups.push_back(
        {connector::TokenReach::named(kind, tokens), SlabClassId(options.group_classes[i])});
  }
  return options;
}

}  // namespace kvferry::python
