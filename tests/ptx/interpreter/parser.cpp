// SPDX-License-Identifier: Apache-2.0
#include "interpreter/parser.hpp"

#include "interpreter/fault.hpp"
#include "interpreter/mnemonics.hpp"
#include "interpreter/ptx_text.hpp"
#include "interpreter/scopes.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>
#include <regex>
#include <utility>

namespace kvferry::ptx {
namespace {

/// Splits at commas outside of braces and brackets.
std::vector<std::string_view> split_operands(std::string_view text) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '{' || text[i] == '[') ++depth;
    if (text[i] == '}' || text[i] == ']') --depth;
    if (text[i] != ',' || depth != 0) continue;
    parts.push_back(trimmed(text.substr(begin, i - begin)));
    begin = i + 1;
  }
  if (!trimmed(text).empty()) parts.push_back(trimmed(text.substr(begin)));
  return parts;
}

std::optional<std::uint64_t> number_of(std::string_view text) {
  // A float by its bits: 0f3F000000. 1.0 stands only where the model has no use for the value.
  if (text == "1.0") return 1;
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  const bool hexadecimal = text.starts_with("0f") || text.starts_with("0x");
  if (hexadecimal) text.remove_prefix(2);
  std::uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, hexadecimal ? 16 : 10);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return negative ? ~value + 1 : value;
}

class KernelParser {
 public:
  KernelParser(const EntryText& entry, std::string_view module) : entry_(entry) {
    kernel_.name = entry.name;
    const std::string parameter = entry.name + "_param_0";
    symbols_.emplace_back(parameter, kParameterAddress);
    std::smatch found;
    const std::regex bytes(R"(\.param[^,]*\.b8 +)" + parameter + R"(\[(\d+)\])");
    if (!std::regex_search(entry.header, found, bytes)) {
      throw UnknownPtx(entry.body.front().line, "a kernel whose parameter is not one array");
    }
    kernel_.parameter_bytes = static_cast<std::uint32_t>(std::stoul(found[1]));
    if (std::regex_search(entry.header, found, std::regex(R"(\.maxntid (\d+))"))) {
      kernel_.max_threads = static_cast<std::uint32_t>(std::stoul(found[1]));
    }
    const std::string text(module);
    if (std::regex_search(text, found, std::regex(R"(\.extern \.shared [^;]*\.b8 (\w+)\[\];)"))) {
      symbols_.emplace_back(found[1], kSharedAddress);
    }
  }

  Kernel parse() {
    for (const Statement& statement : entry_.body) read(statement);
    for (const auto& [at, label, scopes] : branches_) {
      const auto target = scopes_.find_label(label, scopes);
      if (!target) throw UnknownPtx(kernel_.code[at].line, "there is no label '" + label + "'");
      kernel_.code[at].target = *target;
    }
    kernel_.num_registers = scopes_.num_registers();
    return std::move(kernel_);
  }

 private:
  void read(const Statement& statement) {
    switch (statement.kind) {
      case Statement::Kind::kOpen:
        return scopes_.open();
      case Statement::Kind::kClose:
        return scopes_.close();
      case Statement::Kind::kLabel:
        return scopes_.declare_label(statement.text, kernel_.code.size());
      case Statement::Kind::kDirective:
        if (statement.text.starts_with(".reg")) {
          return scopes_.declare_registers(statement.text, statement.line);
        }
        if (statement.text.starts_with(".pragma")) return;
        throw UnknownPtx(statement.line, "directive '" + statement.text + "'");
      case Statement::Kind::kInstruction:
        return read_instruction(statement);
    }
  }

  void read_instruction(const Statement& statement) {
    Instruction one;
    one.line = statement.line;
    one.text = statement.text;
    std::string_view rest = statement.text;
    if (rest.starts_with('@')) {
      std::string_view predicate = take_word(rest).substr(1);
      one.predicate_negated = predicate.starts_with('!');
      if (one.predicate_negated) predicate.remove_prefix(1);
      one.predicate = register_of(predicate, one.line);
    }
    const Opcode opcode = find_opcode(take_word(rest), one.line);
    one.op = opcode.mnemonic->op;
    one.comparison = opcode.mnemonic->comparison;
    one.type = opcode.type;
    one.from = opcode.from;
    one.num_elements = opcode.num_elements;
    const std::vector<std::string_view> operands = split_operands(rest);
    if (operands.size() != opcode.mnemonic->num_operands) {
      throw UnknownPtx(one.line, "'" + one.text + "' has " + std::to_string(operands.size()) +
                                     " operands, not " +
                                     std::to_string(opcode.mnemonic->num_operands));
    }
    for (std::string_view operand : operands) {
      one.operands[one.num_operands++] =
          one.op == Op::kBranch ? label_of(operand) : operand_of(operand, one);
    }
    kernel_.code.push_back(std::move(one));
    kernel_.mnemonics.push_back(opcode.mnemonic->name);
  }

  static std::string_view take_word(std::string_view& text) {
    const std::size_t end = std::min(text.find_first_of(" \t\n"), text.size());
    const std::string_view word = text.substr(0, end);
    text = trimmed(text.substr(end));
    return word;
  }

  [[nodiscard]] int register_of(std::string_view name, int line) const {
    const auto number = scopes_.find_register(name);
    if (!number) throw UnknownPtx(line, "'" + std::string(name) + "' is no register");
    return *number;
  }

  Operand label_of(std::string_view name) {
    branches_.push_back({kernel_.code.size(), std::string(name), scopes_.open_scopes()});
    Operand operand;
    operand.kind = Operand::kLabel;
    return operand;
  }

  Operand operand_of(std::string_view text, const Instruction& one) {
    Operand operand;
    if (text == "_") return operand;
    // Whether the other lane was there goes to a predicate, which no kernel reads.
    if (one.op == Op::kShuffle) text = text.substr(0, text.find('|'));
    if (text.starts_with('[')) return address_of(trimmed(text.substr(1, text.size() - 2)), one);
    if (text.starts_with('{')) return vector_of(text.substr(1, text.size() - 2), one);
    if (const auto number = scopes_.find_register(text)) {
      operand.kind = Operand::kRegister;
      operand.reg = *number;
    } else if (const auto value = value_of(text)) {
      operand.kind = Operand::kImmediate;
      operand.value = *value;
    } else if (const auto special = special_of(text)) {
      operand.kind = Operand::kSpecial;
      operand.special = *special;
    } else {
      throw UnknownPtx(one.line, "operand '" + std::string(text) + "' of '" + one.text + "'");
    }
    return operand;
  }

  /// "%rd1+-8", "kernel_param_0+16", "%r1".
  Operand address_of(std::string_view text, const Instruction& one) {
    Operand operand;
    operand.kind = Operand::kAddress;
    const std::size_t plus = text.find('+');
    const std::string_view base = trimmed(text.substr(0, plus));
    if (plus != std::string_view::npos) {
      const auto offset = number_of(trimmed(text.substr(plus + 1)));
      if (!offset) throw UnknownPtx(one.line, "the offset in '" + one.text + "'");
      operand.value = *offset;
    }
    if (const auto symbol = value_of(base)) {
      operand.value += *symbol;
    } else {
      operand.reg = register_of(base, one.line);
    }
    return operand;
  }

  [[nodiscard]] Operand vector_of(std::string_view text, const Instruction& one) const {
    Operand operand;
    operand.kind = Operand::kVector;
    const std::vector<std::string_view> names = split_operands(text);
    // A move of two halves is no access, and its type has no "v2".
    const std::size_t num_elements = one.op == Op::kMove ? 2 : one.num_elements;
    if (names.size() != num_elements) {
      throw UnknownPtx(one.line, "the vector's size in '" + one.text + "'");
    }
    std::transform(names.begin(), names.end(), operand.vector.begin(),
                   [&](std::string_view name) { return register_of(name, one.line); });
    return operand;
  }

  [[nodiscard]] std::optional<std::uint64_t> value_of(std::string_view text) const {
    const auto symbol = std::find_if(symbols_.begin(), symbols_.end(),
                                     [&](const auto& known) { return known.first == text; });
    return symbol == symbols_.end() ? number_of(text) : symbol->second;
  }

  static std::optional<Special> special_of(std::string_view text) {
    if (text == "%tid.x") return Special::kThread;
    if (text == "%ntid.x") return Special::kNumThreads;
    if (text == "%ctaid.x") return Special::kBlock;
    if (text == "%nctaid.x") return Special::kNumBlocks;
    if (text == "%dynamic_smem_size") return Special::kDynamicSharedBytes;
    return std::nullopt;
  }

  struct Branch {
    std::size_t at;
    std::string label;
    std::vector<int> scopes;
  };

  const EntryText& entry_;
  Kernel kernel_;
  Scopes scopes_;
  std::vector<std::pair<std::string, std::uint64_t>> symbols_;
  std::vector<Branch> branches_;
};

}  // namespace

std::vector<std::string> kernel_names(std::string_view module) {
  std::vector<std::string> names;
  for (EntryText& entry : entries_of(module)) names.push_back(std::move(entry.name));
  return names;
}

Kernel parse_kernel(std::string_view module, std::string_view name) {
  for (const EntryText& entry : entries_of(module)) {
    if (entry.name == name) return KernelParser(entry, module).parse();
  }
  throw UnknownPtx(1, "the module has no kernel '" + std::string(name) + "'");
}

}  // namespace kvferry::ptx
