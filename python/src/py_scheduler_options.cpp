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

/// Distinguishes this engine's plans from those of any other engine, even after a restart.
connector::DomainId random_domain() {
  std::random_device source;
  return connector::DomainId(static_cast<std::uint32_t>(source()));
}

cpu_tier::Admission admission(const OptionValue& value) {
  return cpu_tier::admission_from(value.text());
}

connector::LaterTurns later_turns(const OptionValue& value) {
  return value.flag() ? connector::LaterTurns::kStored : connector::LaterTurns::kNotStored;
}

connector::OtherLoads other_loads(const OptionValue& value) {
  return value.flag() ? connector::OtherLoads::kPossible : connector::OtherLoads::kNone;
}

connector::StoredPart stored_part(const OptionValue& value) {
  return value.flag() ? connector::StoredPart::kPrompt : connector::StoredPart::kAll;
}

WeightsId weights(const OptionValue& value) { return WeightsId(read<std::uint64_t>(value)); }

connector::Retention retention(const OptionValue& value) {
  using Rule = connector::Retention::Rule;
  if (!value.is_text()) return {Rule::kEngine, read<std::uint32_t>(value)};
  const std::string name = value.text();
  if (name == "dense") return {Rule::kDense, 0};
  if (name != "engine") value.refuse("'engine', 'dense' or a number of tokens");
  return {Rule::kEngine, 0};
}

template <auto... Members>
void set_engine(PySchedulerOptions& options, const OptionValue& value) {
  set_field<&PySchedulerOptions::engine, Members...>(options, value);
}
template <auto Read, auto... Members>
void set_engine_by(PySchedulerOptions& options, const OptionValue& value) {
  set_field_by<Read, &PySchedulerOptions::engine, Members...>(options, value);
}
template <auto Member>
void set_file(PySchedulerOptions& options, const OptionValue& value) {
  set_field<&PySchedulerOptions::shared, &SharedTierWish::tier, Member>(options, value);
}
template <auto Member>
void set_identity(PySchedulerOptions& options, const OptionValue& value) {
  set_field<&PySchedulerOptions::identity, Member>(options, value);
}

constexpr OptionKey<PySchedulerOptions> kKeys[] = {
    {"world_size", set_engine<&SchedulerOptions::world_size>, Presence::kRequired},
    {"hash_tokens", set_engine<&SchedulerOptions::hash_tokens>, Presence::kRequired},
    {"num_blocks", set_engine<&SchedulerOptions::num_blocks>, Presence::kRequired},
    {"max_chunks", set_engine<&SchedulerOptions::max_chunks>, Presence::kRequired},
    {"slot_bytes", set_field<&PySchedulerOptions::slot_bytes>, Presence::kRequired},
    {"slots_per_chunk", set_field<&PySchedulerOptions::slots_per_chunk>, Presence::kRequired},
    {"replicas", set_field<&PySchedulerOptions::replicas>, Presence::kRequired},
    {"group_reaches", set_field<&PySchedulerOptions::group_reaches>, Presence::kRequired},
    {"group_classes", set_field<&PySchedulerOptions::group_classes>, Presence::kRequired},
    {"group_hashes_per_block", set_field<&PySchedulerOptions::group_hashes_per_block>,
     Presence::kRequired},
    {"group_unseen_tokens", set_field<&PySchedulerOptions::group_unseen_tokens>},
    {"eviction", set_engine_by<eviction, &SchedulerOptions::tier, &TierOptions::eviction>,
     Presence::kRequired},
    {"admission", set_engine_by<admission, &SchedulerOptions::tier, &TierOptions::admission>,
     Presence::kRequired},
    {"max_awaited_share", set_engine<&SchedulerOptions::tier, &TierOptions::max_awaited_share>,
     Presence::kRequired},
    {"max_promised_share", set_engine<&SchedulerOptions::tier, &TierOptions::max_promised_share>,
     Presence::kRequired},
    {"key_events", set_engine<&SchedulerOptions::tier, &TierOptions::key_events>,
     Presence::kRequired},
    {"retention", set_engine_by<retention, &SchedulerOptions::retention>, Presence::kRequired},
    {"store_prompt_only", set_engine_by<stored_part, &SchedulerOptions::stored_part>,
     Presence::kRequired},
    {"weights", set_engine_by<weights, &SchedulerOptions::weights>},
    {"store_later_turns", set_engine_by<later_turns, &SchedulerOptions::later_turns>,
     Presence::kRequired},
    {"others_load", set_engine_by<other_loads, &SchedulerOptions::other_loads>,
     Presence::kRequired},
    {"max_load_wait_s", set_engine<&SchedulerOptions::max_load_wait>, Presence::kRequired},
    {"rank_timeout_s", set_engine<&SchedulerOptions::rank_timeout>, Presence::kRequired},
    {"load_timeout_s", set_engine<&SchedulerOptions::load_timeout>, Presence::kRequired},
    {"recorder_path", set_field<&PySchedulerOptions::recorder_path>},
    {"recorder_ring_bytes", set_field<&PySchedulerOptions::recorder_bytes>},
    {"shared_path", set_file<&SharedTierOptions::path>},
    {"shared_capacity_bytes", set_file<&SharedTierOptions::capacity_bytes>},
    {"shared_chunk_bytes", set_file<&SharedTierOptions::chunk_bytes>},
    {"shared_keep", set_field_by<at_exit, &PySchedulerOptions::shared, &SharedTierWish::tier,
                                 &SharedTierOptions::at_exit>},
    {"shared_instance", set_field<&PySchedulerOptions::shared, &SharedTierWish::instance>},
    {"shared_weight", set_identity<&Identity::weight>},
    {"name_space", set_identity<&Identity::name_space>},
    {"most_chunks", set_identity<&Identity::most_chunks>},
    {"grace_s", set_identity<&Identity::grace>},
    {"start", set_field<&PySchedulerOptions::start>},
    {"model", set_field<&PySchedulerOptions::model>},
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
  expect_pairs("group_reaches", options.group_reaches.size(), "group_hashes_per_block",
               options.group_hashes_per_block.size());
  options.group_unseen_tokens.resize(options.group_unseen_tokens.empty()
                                         ? options.group_reaches.size()
                                         : options.group_unseen_tokens.size());
  expect_pairs("group_reaches", options.group_reaches.size(), "group_unseen_tokens",
               options.group_unseen_tokens.size());
  engine.groups.clear();
  for (std::size_t i = 0; i < options.group_reaches.size(); ++i) {
    const auto& [kind, tokens] = options.group_reaches[i];
    engine.groups.push_back({connector::TokenReach::named(kind, tokens),
                             SlabClassId(options.group_classes[i]),
                             options.group_hashes_per_block[i], options.group_unseen_tokens[i]});
  }
  return options;
}

}  // namespace kvferry::python
