// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/file_header.hpp"

#include "kvferry/base/boot_id.hpp"
#include "kvferry/base/error.hpp"

#include <algorithm>
#include <cstring>

namespace kvferry::cpu_tier {
namespace {

constexpr std::uint32_t kByteOrder = 0x01020304;

std::array<char, 40> boot_of(const std::filesystem::path& proc) {
  std::array<char, 40> id{};
  const std::string text = present_boot(proc);
  std::copy_n(text.begin(), std::min(text.size(), id.size() - 1), id.begin());
  return id;
}

std::string text_of(const std::array<char, 40>& id) {
  return {id.data(), ::strnlen(id.data(), id.size())};
}

[[noreturn]] void refuse(const std::string& what, const std::string& found,
                         const std::string& expected, const FileInQuestion& file) {
  throw ConfigError(file.name + " has " + what + " " + found + ", expected " + expected + ": " +
                    file.remedy);
}

}  // namespace

FileHeader FileHeader::of(const Magic& magic, std::uint32_t version,
                          const std::filesystem::path& proc) {
  return {.magic = magic, .version = version, .byte_order = kByteOrder, .boot_id = boot_of(proc)};
}

void check_magic(const FileHeader& found, const FileHeader& expected, const FileInQuestion& file) {
  if (found.magic == expected.magic) return;
  throw ConfigError(file.name + " was not made by " + file.maker + ": name another path");
}

void check_header(const FileHeader& found, const FileHeader& expected, const FileInQuestion& file) {
  check_magic(found, expected, file);
  check_figure("layout version", found.version, expected.version, file);
  check_figure("byte order", found.byte_order, expected.byte_order, file);
  if (!found.is_of_boot(expected)) {
    refuse("the boot id", text_of(found.boot_id), text_of(expected.boot_id), file);
  }
}

void check_figure(const char* what, std::uint64_t found, std::uint64_t expected,
                  const FileInQuestion& file) {
  if (found == expected) return;
  refuse(what, std::to_string(found), std::to_string(expected), file);
}

}  // namespace kvferry::cpu_tier
