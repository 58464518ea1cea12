// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvferry::gpu {

using FileBytes = std::span<const std::byte>;

/// The value at `offset`; throws std::out_of_range past the end.
template <typename T>
T read_at(FileBytes bytes, std::size_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) {
    throw std::out_of_range("read past the end of an image");
  }
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

/// The part [offset, offset + size); throws std::out_of_range.
[[nodiscard]] FileBytes part(FileBytes bytes, std::size_t offset, std::size_t size);

struct ElfSection {
  std::string name;
  std::uint32_t type = 0;
  FileBytes bytes;
};

struct ElfSymbol {
  std::string name;
  unsigned type = 0;
  unsigned binding = 0;
  std::uint16_t section = 0;
};

/// Sections and symbols of a 64-bit little-endian ELF file. A symbol's index is that of its table.
struct ElfFile {
  std::vector<ElfSection> sections;
  std::vector<ElfSymbol> symbols;

  [[nodiscard]] const ElfSection* section(const std::string& name) const;
};

/// Throws std::runtime_error. The symbols are those of the table of `symbol_table` type
/// (SHT_SYMTAB, SHT_DYNSYM).
[[nodiscard]] ElfFile read_elf(FileBytes bytes, std::uint32_t symbol_table);

}  // namespace kvferry::gpu
