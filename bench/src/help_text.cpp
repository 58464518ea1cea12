// SPDX-License-Identifier: Apache-2.0
#include "help_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

namespace kvferry::bench {
namespace {

// The room for a name; a longer one has a line of its own.
constexpr std::size_t kNameWidth = 26;
// In a narrower terminal, lines are longer than the terminal.
constexpr std::size_t kLeastTextWidth = 30;

/// The words of `text` in lines of `width` characters. Lines after the first begin with `indent`
/// spaces. Line ends of the text stay.
std::string wrapped(const std::string& text, std::size_t width, std::size_t indent) {
  std::string out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!out.empty()) out += '\n' + std::string(indent, ' ');
    std::size_t used = 0;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (used != 0 && used + 1 + word.size() > width) {
        out += '\n' + std::string(indent, ' ');
        used = 0;
      }
      if (used != 0) out += ' ';
      out += word;
      used += word.size() + (used == 0 ? 0 : 1);
    }
  }
  return out;
}

/// "N" for a number, and the name that the option gives to its value; "" for a switch.
std::string value_name(const CLI::Option& option) {
  if (option.get_type_size() == 0) return "";
  // What follows a colon describes the check of the value.
  std::string name = option.get_type_name();
  name = name.substr(0, name.find(':'));
  if (name == "UINT" || name == "INT" || name == "FLOAT") name = "N";
  if (name == "TEXT") name = "WORD";
  const bool takes_several = option.get_delimiter() != '\0';
  return " " + name + (takes_several ? ",..." : "");
}

std::string meaning_of(const CLI::Option& option) {
  std::string usual = option.get_default_str();
  // A list comes with brackets of its own.
  if (usual.starts_with('[') && usual.ends_with(']')) usual = usual.substr(1, usual.size() - 2);
  return option.get_description() + (usual.empty() ? "" : fmt::format(" [{}]", usual));
}

}  // namespace

HelpText::HelpText(std::size_t width) : width_(width) {}

std::string HelpText::entry(const std::string& name, const std::string& meaning) const {
  const std::size_t indent = kNameWidth + 2;
  const std::size_t width = std::max(width_, indent + kLeastTextWidth) - indent;
  const std::string text = wrapped(meaning, width, indent);
  if (name.size() + 2 > kNameWidth) {
    return fmt::format("  {}\n{:{}}{}\n", name, "", indent, text);
  }
  return fmt::format("  {:<{}}{}\n", name, kNameWidth, text);
}

std::string HelpText::make_option(const CLI::Option* option, bool is_positional) const {
  return entry(make_option_name(option, is_positional) + value_name(*option), meaning_of(*option));
}

std::string HelpText::make_subcommand(const CLI::App* subcommand) const {
  return entry(subcommand->get_display_name(true), subcommand->get_description());
}

std::string HelpText::make_description(const CLI::App* app) const {
  return wrapped(app->get_description(), std::max(width_, kLeastTextWidth), 0) + "\n\n";
}

std::string HelpText::make_footer(const CLI::App* app) const {
  return wrapped(app->get_footer(), std::max(width_, kLeastTextWidth), 0) + '\n';
}

}  // namespace kvferry::bench
