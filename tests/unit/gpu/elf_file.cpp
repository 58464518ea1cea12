// SPDX-License-Identifier: Apache-2.0
#include "elf_file.hpp"

#include <algorithm>
#include <elf.h>

namespace kvferry::gpu {
namespace {

std::string text_at(FileBytes bytes, std::size_t offset) {
  const FileBytes rest = part(bytes, offset, bytes.size() - std::min(offset, bytes.size()));
  const auto end = std::find(rest.begin(), rest.end(), std::byte{0});
  return {reinterpret_cast<const char*>(rest.data()), static_cast<std::size_t>(end - rest.begin())};
}

}  // namespace

FileBytes part(FileBytes bytes, std::size_t offset, std::size_t size) {
  if (offset > bytes.size() || bytes.size() - offset < size) {
    throw std::out_of_range("part of an image past its end");
  }
  return bytes.subspan(offset, size);
}

const ElfSection* ElfFile::section(const std::string& name) const {
  const auto found = std::find_if(sections.begin(), sections.end(),
                                  [&](const ElfSection& s) { return s.name == name; });
  return found == sections.end() ? nullptr : &*found;
}

ElfFile read_elf(FileBytes bytes, std::uint32_t symbol_table) {
  const auto header = read_at<Elf64_Ehdr>(bytes, 0);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
    throw std::runtime_error("not an ELF file");
  std::vector<Elf64_Shdr> headers;
  for (std::size_t i = 0; i < header.e_shnum; ++i) {
    headers.push_back(read_at<Elf64_Shdr>(bytes, header.e_shoff + i * header.e_shentsize));
  }
  const auto contents = [&](const Elf64_Shdr& h) {
    return h.sh_type == SHT_NOBITS ? FileBytes() : part(bytes, h.sh_offset, h.sh_size);
  };
  ElfFile elf;
  for (const Elf64_Shdr& h : headers) {
    elf.sections.push_back(
        {text_at(contents(headers.at(header.e_shstrndx)), h.sh_name), h.sh_type, contents(h)});
  }
  for (const Elf64_Shdr& h : headers) {
    if (h.sh_type != symbol_table) continue;
    const FileBytes names = contents(headers.at(h.sh_link));
    for (std::size_t at = 0; at < h.sh_size; at += sizeof(Elf64_Sym)) {
      const auto symbol = read_at<Elf64_Sym>(contents(h), at);
      elf.symbols.push_back({text_at(names, symbol.st_name), symbol.st_info & 0xfU,
                             static_cast<unsigned>(symbol.st_info) >> 4U, symbol.st_shndx});
    }
  }
  return elf;
}

}  // namespace kvferry::gpu
