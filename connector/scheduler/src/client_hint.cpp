// SPDX-License-Identifier: Apache-2.0
#include "kvferry/connector/scheduler/client_hint.hpp"

#include "kvferry/base/error.hpp"

namespace kvferry::connector {

HintAction hint_action_from(std::string_view name) {
  std::string known;
  for (std::size_t i = 0; i < kHintNames.size(); ++i) {
    if (name == kHintNames[i]) return static_cast<HintAction>(i);
    known += (i == 0 ? "" : ", ") + std::string(kHintNames[i]);
  }
  throw ConfigError("'" + std::string(name) + "' is not a hint; expected one of " + known);
}

}  // namespace kvferry::connector
