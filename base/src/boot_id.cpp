// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/boot_id.hpp"

#include <fstream>

namespace kvferry {

std::string present_boot(const std::filesystem::path& proc) {
  std::string text;
  std::getline(std::ifstream(proc / "sys/kernel/random/boot_id"), text);
  return text;
}

}  // namespace kvferry
