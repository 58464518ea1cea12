// SPDX-License-Identifier: Apache-2.0
#include "subcommand.hpp"

namespace kvferry::bench {

std::vector<std::unique_ptr<Subcommand>> subcommands() {
  std::vector<std::unique_ptr<Subcommand>> all;
  all.push_back(make_link());
  all.push_back(make_copy());
  all.push_back(make_pipeline());
  all.push_back(make_expect());
  all.push_back(make_meta());
  all.push_back(make_share());
  all.push_back(make_pin());
  all.push_back(make_trace());
  return all;
}

}  // namespace kvferry::bench
