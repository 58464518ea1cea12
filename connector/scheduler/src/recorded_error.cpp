// SPDX-License-Identifier: Apache-2.0
#include "kvferry/connector/scheduler/recorded_error.hpp"

#include "kvferry/base/error.hpp"

namespace kvferry::connector {

ErrorClass class_of(const std::exception& error) {
  if (dynamic_cast<const ProtocolError*>(&error) != nullptr) return ErrorClass::kProtocol;
  if (dynamic_cast<const TopologyError*>(&error) != nullptr) return ErrorClass::kTopology;
  if (dynamic_cast<const TimeoutError*>(&error) != nullptr) return ErrorClass::kTimeout;
  if (dynamic_cast<const ConfigError*>(&error) != nullptr) return ErrorClass::kConfig;
  if (dynamic_cast<const ResourceError*>(&error) != nullptr) return ErrorClass::kResource;
  return ErrorClass::kOther;
}

}  // namespace kvferry::connector
