// SPDX-License-Identifier: Apache-2.0
#include "measure/traffic.hpp"

#include "kvferry/base/error.hpp"

#include <fmt/format.h>

namespace kvferry::bench {

const char* to_string(Traffic traffic) {
  switch (traffic) {
    case Traffic::kHostToDevice:
      return "h2d";
    case Traffic::kDeviceToHost:
      return "d2h";
    case Traffic::kBoth:
      return "both";
  }
  return "unknown direction";
}

Traffic traffic_from(std::string_view text) {
  if (text == "load") return Traffic::kHostToDevice;
  if (text == "store") return Traffic::kDeviceToHost;
  for (const auto traffic : {Traffic::kHostToDevice, Traffic::kDeviceToHost, Traffic::kBoth}) {
    if (text == to_string(traffic)) return traffic;
  }
  throw ConfigError(
      fmt::format("'{}' is not a direction: write h2d (load), d2h (store) or both", text));
}

std::vector<gpu::CopyDirection> directions(Traffic traffic) {
  switch (traffic) {
    case Traffic::kHostToDevice:
      return {gpu::CopyDirection::kHostToDevice};
    case Traffic::kDeviceToHost:
      return {gpu::CopyDirection::kDeviceToHost};
    case Traffic::kBoth:
      break;
  }
  return {gpu::CopyDirection::kHostToDevice, gpu::CopyDirection::kDeviceToHost};
}

}  // namespace kvferry::bench
