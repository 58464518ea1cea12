// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/boot_id.hpp"

#include "kvferry/base/error.hpp"

#include <cerrno>
#include <fstream>
#include <system_error>

namespace kvferry {

std::string present_boot(const std::filesystem::path& proc) {
  const std::filesystem::path path = proc / "sys/kernel/random/boot_id";
  errno = 0;
  std::ifstream file(path);
  if (!file && errno != ENOENT) {
    throw ResourceError("cannot read " + path.string() + ": " +
                        std::generic_category().message(errno) +
                        "; raise the limit of open files (ulimit -n) if that is the reason");
  }
  std::string text;
  std::getline(file, text);
  return text;
}

}  // namespace kvferry
