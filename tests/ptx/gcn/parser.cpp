// SPDX-License-Identifier: Apache-2.0
#include "gcn/parser.hpp"

#include "interpreter/ptx_text.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

namespace kvferry::gcn {
namespace {

using ptx::trimmed;

constexpr std::string_view kDescriptor = ".amdhsa_kernel ";

/// Splits at `separator` outside of brackets.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const bool ends = i == text.size() || (text[i] == separator && depth == 0);
    if (!ends) {
      depth += text[i] == '[' ? 1 : text[i] == ']' ? -1 : 0;
      continue;
    }
    if (const auto part = trimmed(text.substr(begin, i - begin)); !part.empty()) {
      parts.push_back(part);
    }
    begin = i + 1;
  }
  return parts;
}

std::optional<std::int64_t> integer_of(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  const bool hexadecimal = text.starts_with("0x");
  if (hexadecimal) text.remove_prefix(2);
  std::int64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, hexadecimal ? 16 : 10);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return negative ? -value : value;
}

/// "v7", "s[4:5]", "vcc", "0x1000", "-1", "0.5".
std::optional<Operand> operand_of(std::string_view text) {
  Operand operand;
  if (text == "vcc" || text == "exec") {
    operand = {Operand::kScalar, text == "vcc" ? kVcc : kExec, 2, 0};
    return operand;
  }
  if (text.starts_with('v') || text.starts_with('s')) {
    operand.kind = text.starts_with('v') ? Operand::kVector : Operand::kScalar;
    std::string_view range = text.substr(1);
    if (range.starts_with('[')) range = range.substr(1, range.size() - 2);
    const std::size_t colon = range.find(':');
    const auto first = integer_of(range.substr(0, colon));
    const auto last = colon == std::string_view::npos ? first : integer_of(range.substr(colon + 1));
    if (!first || !last) return std::nullopt;
    operand.reg = static_cast<std::uint16_t>(*first);
    operand.num_registers = static_cast<std::uint16_t>(*last - *first + 1);
    return operand;
  }
  operand.kind = Operand::kConstant;
  if (const auto integer = integer_of(text)) {
    operand.value = static_cast<std::uint64_t>(*integer);
    return operand;
  }
  float value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  operand.value = std::bit_cast<std::uint32_t>(value);
  return operand;
}

class KernelParser {
 public:
  explicit KernelParser(std::string_view name) { kernel_.name = name; }

  void read(std::string_view text, int line) {
    if (text.ends_with(':')) {
      labels_[std::string(text.substr(0, text.size() - 1))] = kernel_.code.size();
      return;
    }
    const std::size_t space = std::min(text.find_first_of(" \t"), text.size());
    Instruction one;
    one.line = line;
    one.text = text;
    one.opcode = find_opcode(text.substr(0, space));
    if (one.opcode == nullptr) {
      throw UnknownAssembly(line, "opcode '" + std::string(text.substr(0, space)) +
                                      "': the interpreter does not know it (tests/ptx/README.md)");
    }
    const std::string_view rest = trimmed(text.substr(space));
    if (one.opcode->form == Form::kWait) {
      read_wait(rest, one);
    } else if (one.opcode->form == Form::kBranch) {
      branches_.emplace_back(kernel_.code.size(), rest);
      one.num_operands = 1;
    } else {
      read_operands(rest, one);
    }
    if (one.num_operands != one.opcode->num_operands) {
      throw UnknownAssembly(line, "'" + one.text + "' has another number of operands");
    }
    kernel_.code.push_back(std::move(one));
  }

  /// Where the hardware puts what the kernel asks for: LLVM, "User Guide for AMDGPU Backend",
  /// initial kernel execution state.
  void read_descriptor(const std::map<std::string, std::uint32_t>& descriptor) {
    const auto asked = [&](const char* name) {
      const auto found = descriptor.find(std::string(".amdhsa_") + name);
      return found == descriptor.end() ? 0 : found->second;
    };
    std::uint32_t next = asked("user_sgpr_private_segment_buffer") * 4;
    kernel_.dispatch_register = static_cast<std::uint16_t>(next);
    next += asked("user_sgpr_dispatch_ptr") * 2 + asked("user_sgpr_queue_ptr") * 2;
    kernel_.parameter_register = static_cast<std::uint16_t>(next);
    kernel_.block_register = static_cast<std::uint16_t>(asked("user_sgpr_count"));
    kernel_.num_vectors = asked("next_free_vgpr");
    kernel_.parameter_bytes = asked("kernarg_size");
  }

  Kernel finish() {
    for (const auto& [at, label] : branches_) {
      const auto found = labels_.find(label);
      if (found == labels_.end()) {
        throw UnknownAssembly(kernel_.code[at].line, "there is no label '" + label + "'");
      }
      kernel_.code[at].target = found->second;
    }
    return std::move(kernel_);
  }

 private:
  static void read_wait(std::string_view text, Instruction& one) {
    for (const std::string_view part : split(text, ' ')) {
      const std::size_t open = std::min(part.find('('), part.size() - 1);
      const auto count = integer_of(part.substr(open + 1, part.size() - open - 2));
      const std::string_view counter = part.substr(0, open);
      if (!count || (counter != "vmcnt" && counter != "lgkmcnt")) {
        throw UnknownAssembly(one.line, "'" + one.text + "'");
      }
      auto& most = counter == "vmcnt" ? one.max_vector_left : one.max_scalar_left;
      most = static_cast<std::uint32_t>(*count);
    }
  }

  static void read_operands(std::string_view text, Instruction& one) {
    for (const std::string_view part : split(text, ',')) {
      for (const std::string_view word : split(part, ' ')) {
        if (read_modifier(word, one)) continue;
        const auto operand = operand_of(word);
        if (!operand || one.num_operands == one.operands.size()) {
          throw UnknownAssembly(one.line, "'" + std::string(word) + "' in '" + one.text + "'");
        }
        one.operands[one.num_operands++] = *operand;
      }
    }
  }

  static bool read_modifier(std::string_view word, Instruction& one) {
    // No scalar base; and what caches shall do.
    if (word == "off" || word == "glc" || word == "slc" || word == "nt") return true;
    const std::size_t colon = word.find(':');
    const std::string_view name = word.substr(0, colon);
    if (name == "offset") {
      one.offset = integer_of(word.substr(colon + 1)).value_or(0);
      return true;
    }
    if (name != "op_sel" && name != "op_sel_hi") return false;
    std::uint8_t halves = 0;
    const std::string_view list = word.substr(colon + 2, word.size() - colon - 3);
    const std::vector<std::string_view> bits = split(list, ',');
    for (std::size_t i = 0; i < bits.size(); ++i) {
      if (bits[i] == "1") halves = static_cast<std::uint8_t>(halves | 1U << i);
    }
    (name == "op_sel" ? one.low_from_high : one.high_from_high) = halves;
    return true;
  }

  Kernel kernel_;
  std::map<std::string, std::size_t> labels_;
  std::vector<std::pair<std::size_t, std::string>> branches_;
};

}  // namespace

std::vector<std::string> kernel_names(std::string_view assembly) {
  std::vector<std::string> names;
  std::istringstream lines{std::string(assembly)};
  for (std::string line; std::getline(lines, line);) {
    const std::string_view text = trimmed(line);
    if (text.starts_with(kDescriptor)) names.emplace_back(text.substr(kDescriptor.size()));
  }
  return names;
}

Kernel parse_kernel(std::string_view assembly, std::string_view name) {
  enum class Part { kBefore, kCode, kAfterCode, kDescriptor } part = Part::kBefore;
  KernelParser parser(name);
  std::map<std::string, std::uint32_t> descriptor;
  std::istringstream lines{std::string(assembly)};
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const std::string_view text = trimmed(std::string_view(line).substr(0, line.find(';')));
    if (text.empty()) continue;
    if (part == Part::kBefore && text == std::string(name) + ":") {
      part = Part::kCode;
    } else if (part == Part::kCode && text.starts_with(".section")) {
      part = Part::kAfterCode;
    } else if (part == Part::kCode) {
      parser.read(text, number);
    } else if (part == Part::kAfterCode && text.starts_with(kDescriptor)) {
      part = Part::kDescriptor;
    } else if (part == Part::kDescriptor && text == ".end_amdhsa_kernel") {
      parser.read_descriptor(descriptor);
      return parser.finish();
    } else if (part == Part::kDescriptor) {
      const std::size_t space = text.find(' ');
      const auto value = integer_of(trimmed(text.substr(space)));
      descriptor[std::string(text.substr(0, space))] =
          static_cast<std::uint32_t>(value.value_or(0));
    }
  }
  throw UnknownAssembly(number, "there is no kernel '" + std::string(name) + "', or not all of it");
}

}  // namespace kvferry::gcn
