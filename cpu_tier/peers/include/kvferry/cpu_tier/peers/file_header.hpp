// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>

/// What every file of kvferry in shared memory begins with, and how one that cannot be used is
/// refused.
namespace kvferry::cpu_tier {

struct FileHeader {
  using Magic = std::array<char, 8>;

  /// What kind of file it is.
  Magic magic;
  /// Goes up with every change of what such a file holds.
  std::uint32_t version;
  /// 0x01020304 as the machine writes it that made the file.
  std::uint32_t byte_order;
  /// Text, of that machine's run: what a memory file of another run says is not to be trusted.
  std::array<char, 40> boot_id;

  /// What this machine would write now.
  [[nodiscard]] static FileHeader of(const Magic& magic, std::uint32_t version,
                                     const std::filesystem::path& proc = "/proc");
  [[nodiscard]] bool is_of_boot(const FileHeader& other) const { return boot_id == other.boot_id; }
  bool operator==(const FileHeader&) const = default;
};
static_assert(sizeof(FileHeader) == 56);

/// A file that may be refused: the words of the message.
struct FileInQuestion {
  std::string name;    ///< "shared_path /dev/shm/a".
  std::string maker;   ///< "kvferry for LMCache".
  std::string remedy;  ///< "remove the file, or name another path".
};

/// Throws ConfigError unless it has the magic.
void check_magic(const FileHeader& found, const FileHeader& expected, const FileInQuestion& file);
/// The same for everything; the message names what differs, and both sides.
void check_header(const FileHeader& found, const FileHeader& expected, const FileInQuestion& file);
/// Throws ConfigError naming both, unless they are the same figure.
void check_figure(const char* what, std::uint64_t found, std::uint64_t expected,
                  const FileInQuestion& file);

}  // namespace kvferry::cpu_tier
