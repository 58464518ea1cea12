// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>

/// The beginning of every kvferry file in shared memory, and the refusal of a file that cannot be
/// used.
namespace kvferry::cpu_tier {

struct FileHeader {
  using Magic = std::array<char, 8>;

  /// The kind of file.
  Magic magic;
  /// Rises with every change of the format of such a file.
  std::uint32_t version;
  /// 0x01020304 in the byte order of the machine that made the file.
  std::uint32_t byte_order;
  /// The boot id of that machine, as text: a memory file from an earlier boot is not trusted.
  std::array<char, 40> boot_id;

  /// The header that this machine would write now.
  [[nodiscard]] static FileHeader of(const Magic& magic, std::uint32_t version,
                                     const std::filesystem::path& proc = "/proc");
  [[nodiscard]] bool is_of_boot(const FileHeader& other) const { return boot_id == other.boot_id; }
  bool operator==(const FileHeader&) const = default;
};
static_assert(sizeof(FileHeader) == 56);

/// Texts for the message that refuses a file.
struct FileInQuestion {
  std::string name;    ///< "shared_path /dev/shm/a".
  std::string maker;   ///< "kvferry for LMCache".
  std::string remedy;  ///< "remove the file, or name another path".
};

/// Throws ConfigError unless the header has the right magic.
void check_magic(const FileHeader& found, const FileHeader& expected, const FileInQuestion& file);
/// The same for all fields; the message names the field and both values.
void check_header(const FileHeader& found, const FileHeader& expected, const FileInQuestion& file);
/// Throws ConfigError with both figures, unless they are equal.
void check_figure(const char* what, std::uint64_t found, std::uint64_t expected,
                  const FileInQuestion& file);

}  // namespace kvferry::cpu_tier
