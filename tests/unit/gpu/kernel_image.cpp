// SPDX-License-Identifier: Apache-2.0
#include "kernel_image.hpp"

#include <algorithm>
#include <elf.h>
#include <regex>
#include <string_view>

namespace kvferry::gpu {
namespace {

// CUDA's fatbin as fatbinary writes it (header: fatbinary_section.h; entries: as cuobjdump lists
// them).
constexpr std::uint32_t kFatbinMagic = 0xBA55ED50;
constexpr std::uint16_t kKindPtx = 1;
constexpr std::uint16_t kKindElf = 2;
constexpr std::size_t kEntryArchOffset = 28;

// Attributes of .nv.info (cuobjdump -elf): format 4 is a 16-bit size and {symbol, value}.
constexpr std::uint8_t kFormatSized = 4;
constexpr std::uint8_t kAttributeFrameSize = 0x11;
constexpr std::uint8_t kAttributeRegisters = 0x2f;

std::string_view text_of(FileBytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void collect_undefined(const ElfFile& elf, KernelImage& image) {
  for (const ElfSymbol& symbol : elf.symbols) {
    if (symbol.section == SHN_UNDEF && symbol.binding == STB_GLOBAL) {
      image.undefined.push_back(symbol.name);
    }
  }
}

/// ptxas keeps functions of its own beside the kernels that call them.
bool is_kernel(const std::string& name) { return !name.starts_with("$__internal"); }

KernelImage read_cubin(FileBytes bytes) {
  const ElfFile elf = read_elf(bytes, SHT_SYMTAB);
  KernelImage image;
  collect_undefined(elf, image);
  for (const ElfSymbol& symbol : elf.symbols) {
    if (symbol.type == STT_FUNC && is_kernel(symbol.name)) image.kernels[symbol.name];
  }
  const ElfSection* info = elf.section(".nv.info");
  if (info == nullptr) throw std::runtime_error("no .nv.info");
  for (std::size_t at = 0; at < info->bytes.size();) {
    const auto format = read_at<std::uint8_t>(info->bytes, at);
    const auto attribute = read_at<std::uint8_t>(info->bytes, at + 1);
    const auto size = read_at<std::uint16_t>(info->bytes, at + 2);
    if (format == kFormatSized && size == 8) {
      const auto& name = elf.symbols.at(read_at<std::uint32_t>(info->bytes, at + 4)).name;
      const auto value = read_at<std::uint32_t>(info->bytes, at + 8);
      if (is_kernel(name)) {
        if (attribute == kAttributeFrameSize) image.kernels[name].local_bytes = value;
        if (attribute == kAttributeRegisters) image.kernels[name].num_registers = value;
      }
    }
    at += 4 + (format == kFormatSized ? size : 0U);
  }
  return image;
}

KernelImage read_ptx(FileBytes bytes) {
  KernelImage image;
  const std::string text(text_of(bytes));
  const std::regex entry(R"(\.entry\s+(\w+))");
  for (std::sregex_iterator it(text.begin(), text.end(), entry), end; it != end; ++it) {
    image.kernels[(*it)[1]];
  }
  return image;
}

/// Where the values of a key begin in msgpack (keys here are shorter than 32 bytes).
std::vector<std::size_t> values_of(std::string_view pack, const std::string& key) {
  const std::string encoded = static_cast<char>(0xa0U | key.size()) + key;
  std::vector<std::size_t> found;
  for (auto at = pack.find(encoded); at != std::string_view::npos;
       at = pack.find(encoded, at + 1)) {
    found.push_back(at + encoded.size());
  }
  return found;
}

std::string text_value(FileBytes pack, std::size_t at) {
  const auto tag = read_at<std::uint8_t>(pack, at);
  if ((tag & 0xe0U) != 0xa0U) throw std::runtime_error("a longer string than expected");
  return std::string(text_of(part(pack, at + 1, tag & 0x1fU)));
}

std::uint32_t number_value(FileBytes pack, std::size_t at) {
  const auto tag = read_at<std::uint8_t>(pack, at);
  if (tag < 0x80U) return tag;
  if (tag == 0xccU) return read_at<std::uint8_t>(pack, at + 1);
  if (tag == 0xcdU) {
    return read_at<std::uint8_t>(pack, at + 1) * 256U + read_at<std::uint8_t>(pack, at + 2);
  }
  throw std::runtime_error("a larger number than expected");
}

}  // namespace

std::vector<KernelImage> read_cuda_fatbin(FileBytes bytes) {
  if (read_at<std::uint32_t>(bytes, 0) != kFatbinMagic) throw std::runtime_error("not a fatbin");
  std::vector<KernelImage> images;
  for (std::size_t at = read_at<std::uint16_t>(bytes, 6); at < bytes.size();) {
    const auto kind = read_at<std::uint16_t>(bytes, at);
    const auto header = read_at<std::uint32_t>(bytes, at + 4);
    const auto size = read_at<std::uint64_t>(bytes, at + 8);
    const std::string number = std::to_string(read_at<std::uint32_t>(bytes, at + kEntryArchOffset));
    const FileBytes payload = part(bytes, at + header, size);
    if (kind == kKindElf) {
      images.push_back(read_cubin(payload));
      images.back().arch = "sm_" + number;
    } else if (kind == kKindPtx) {
      images.push_back(read_ptx(payload));
      images.back().arch = "compute_" + number;
    }
    at += header + size;
  }
  return images;
}

KernelImage read_hip_bundle(FileBytes bytes) {
  // clang-offload-bundler: magic, number of entries, then {offset, size, length of the name, name}.
  constexpr std::string_view kMagic = "__CLANG_OFFLOAD_BUNDLE__";
  constexpr std::string_view kTarget = "amdgcn-amd-amdhsa--";
  if (!text_of(bytes).starts_with(kMagic)) throw std::runtime_error("not a bundle");
  std::size_t at = kMagic.size() + 8;
  for (auto n = read_at<std::uint64_t>(bytes, kMagic.size()); n > 0; --n) {
    const auto name_size = read_at<std::uint64_t>(bytes, at + 16);
    const std::string_view name = text_of(part(bytes, at + 24, name_size));
    if (const auto target = name.find(kTarget); target != std::string_view::npos) {
      const FileBytes object =
          part(bytes, read_at<std::uint64_t>(bytes, at), read_at<std::uint64_t>(bytes, at + 8));
      const ElfFile elf = read_elf(object, SHT_DYNSYM);
      KernelImage image;
      image.arch = name.substr(target + kTarget.size());
      collect_undefined(elf, image);
      const ElfSection* note = elf.section(".note");
      if (note == nullptr) throw std::runtime_error("no .note");
      // The keys of each kernel come once and in the order of the kernels.
      const std::string_view pack = text_of(note->bytes);
      const auto names = values_of(pack, ".symbol");
      const auto privates = values_of(pack, ".private_segment_fixed_size");
      const auto registers = values_of(pack, ".vgpr_count");
      for (std::size_t i = 0; i < names.size(); ++i) {
        const std::string descriptor = text_value(note->bytes, names[i]);
        image.kernels[descriptor.substr(0, descriptor.rfind(".kd"))] = {
            number_value(note->bytes, registers.at(i)), number_value(note->bytes, privates.at(i))};
      }
      return image;
    }
    at += 24 + name_size;
  }
  throw std::runtime_error("no code for a device in the bundle");
}

}  // namespace kvferry::gpu
