// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/policy/tier_options.hpp"

#include "kvferry/base/error.hpp"

#include <initializer_list>
#include <string>

namespace kvferry::cpu_tier {
namespace {

/// The one of `choices` that is called `name`.
template <class Choice>
Choice named(const char* what, std::string_view name, std::initializer_list<Choice> choices) {
  std::string known;
  for (const Choice choice : choices) {
    if (name == to_string(choice)) return choice;
    known += std::string(known.empty() ? "" : ", ") + to_string(choice);
  }
  throw ConfigError(std::string(what) + " '" + std::string(name) +
                    "' is unknown; known are: " + known);
}

}  // namespace

const char* to_string(Eviction eviction) {
  switch (eviction) {
    case Eviction::kLru:
      return "lru";
    case Eviction::kArc:
      return "arc";
    case Eviction::kAdaptive:
      return "adaptive";
  }
  return "unknown";
}

const char* to_string(Admission admission) {
  switch (admission) {
    case Admission::kAlways:
      return "always";
    case Admission::kSecondOffer:
      return "second_offer";
    case Admission::kAdaptive:
      return "adaptive";
  }
  return "unknown";
}

Eviction eviction_from(std::string_view name) {
  return named("eviction", name, {Eviction::kLru, Eviction::kArc, Eviction::kAdaptive});
}

Admission admission_from(std::string_view name) {
  return named("admission", name,
               {Admission::kAlways, Admission::kSecondOffer, Admission::kAdaptive});
}

}  // namespace kvferry::cpu_tier
