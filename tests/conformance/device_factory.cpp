// SPDX-License-Identifier: Apache-2.0
#include "device_factory.hpp"

namespace kvferry::gpu {

Absence absence_of(const Backend& backend, const std::string& required) {
  std::string names;
  bool known = required.empty();
  for (const Backend& one : backends()) {
    known = known || one.name == required;
    names += ' ' + one.name;
  }
  if (!known) {
    return {true, "KVFERRY_REQUIRE_BACKEND=" + required + " names no back end; there are:" + names};
  }
  if (backend.open != nullptr) return {};
  if (backend.name != required) return {false, backend.name + ": " + backend.why_absent};
  return {true, "KVFERRY_REQUIRE_BACKEND asks for " + backend.name + ": " + backend.why_absent};
}

}  // namespace kvferry::gpu
