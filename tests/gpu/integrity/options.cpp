// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include "kvferry/base/error.hpp"

#include <charconv>
#include <map>

namespace kvferry::integrity {
namespace {

std::uint64_t number(const std::string& name, const std::string& text) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stopped != end) {
    throw ConfigError(name + " wants a number, not '" + text + "'");
  }
  return value;
}

std::uint64_t at_least(std::uint64_t least, const std::string& name, const std::string& text) {
  const std::uint64_t value = number(name, text);
  if (value < least) throw ConfigError(name + " is at least " + std::to_string(least));
  return value;
}

Sabotage sabotage(const std::string& text) {
  static const std::map<std::string, Sabotage> kKnown = {
      {"none", Sabotage::kNone}, {"byte", Sabotage::kByte}, {"fence", Sabotage::kFence}};
  const auto found = kKnown.find(text);
  if (found == kKnown.end()) throw ConfigError("--sabotage is none, byte or fence");
  return found->second;
}

}  // namespace

Options parse_options(const std::vector<std::string>& arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (name == "--help") {
      options.help = true;
      return options;
    }
    if (i + 1 == arguments.size()) throw ConfigError(name + " wants a value, or is unknown");
    const std::string& value = arguments[++i];
    if (name == "--backend") {
      options.backend = value;
    } else if (name == "--seconds") {
      options.seconds = number(name, value);
    } else if (name == "--seed") {
      options.seed = number(name, value);
    } else if (name == "--threads") {
      options.threads = at_least(1, name, value);
    } else if (name == "--pool-mib") {
      options.pool_mib = at_least(1, name, value);
    } else if (name == "--max-block-kib") {
      options.max_block_kib = at_least(1, name, value);
    } else if (name == "--json") {
      options.json = value;
    } else if (name == "--sabotage") {
      options.sabotage = sabotage(value);
    } else {
      throw ConfigError("unknown argument " + name);
    }
  }
  return options;
}

std::string usage() {
  return "kvferry-integrity [--backend host|cuda|hip|cuda_stand_in|hip_stand_in] [--seconds N]\n"
         "                  [--seed S] [--threads T] [--pool-mib M] [--max-block-kib K]\n"
         "                  [--json FILE]\n"
         "Stores and loads random blocks while a compute stream overwrites and zeroes them; "
         "checks\n"
         "every byte. Exit 0: all was right; 1: a byte was wrong or a transfer failed; 2: it "
         "could\n"
         "not run.\n";
}

}  // namespace kvferry::integrity
