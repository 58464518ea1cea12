// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/policy/eviction_table.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/policy/eviction_memory.hpp"

#include <cstddef>
#include <string>

namespace kvferry::cpu_tier {
namespace {

constexpr const char* name_of(const EvictionRow& row) { return row.name; }
constexpr const char* name_of(const char* name) { return name; }

/// Index of the entry of `table` with the name `name`.
std::size_t index_of(const char* what, std::string_view name, const auto& table) {
  std::string known;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (name == name_of(table[i])) return i;
    known += std::string(known.empty() ? "" : ", ") + name_of(table[i]);
  }
  throw ConfigError(std::string(what) + " '" + std::string(name) +
                    "' is unknown; known are: " + known);
}

bool leaves(Admission admission, const PolicyRule& rule) {
  const bool stores_all = rule.admission == AdmissionRule::kAll;
  return admission == Admission::kAdaptive || stores_all == (admission == Admission::kAlways);
}

}  // namespace

std::vector<PolicyRule> rules_of(Eviction eviction, Admission admission) {
  std::vector<PolicyRule> rules;
  for (const PolicyRule& rule : row_of(eviction).rules) {
    if (leaves(admission, rule)) rules.push_back(rule);
  }
  return rules;
}

const char* to_string(Eviction eviction) { return row_of(eviction).name; }

const char* to_string(Admission admission) {
  return kAdmissionNames[static_cast<std::size_t>(admission)];
}

Eviction eviction_from(std::string_view name) {
  return kEvictions[index_of("eviction", name, kEvictions)].eviction;
}

Admission admission_from(std::string_view name) {
  return static_cast<Admission>(index_of("admission", name, kAdmissionNames));
}

}  // namespace kvferry::cpu_tier
