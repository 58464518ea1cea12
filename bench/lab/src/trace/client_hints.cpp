// SPDX-License-Identifier: Apache-2.0
#include "trace/client_hints.hpp"

#include "options/named_value.hpp"

#include <array>
#include <cstddef>
#include <limits>

namespace kvferry::bench::trace {
namespace {

constexpr std::array kNames{"none", "right", "wrong", "random", "retain", "demote"};

/// The longest life of a random promise, in requests.
constexpr std::size_t kMostRandom = 4'000;

}  // namespace

HintStyle hint_style_from(std::string_view text) {
  return value_from<HintStyle>(text, kNames, "--hints");
}

const char* to_string(HintStyle style) { return kNames[static_cast<std::size_t>(style)]; }

ClientHints::ClientHints(const Trace& trace, HintStyle style)
    : style_(style), goes_on_(trace.num_requests()) {
  std::vector<bool> comes(trace.num_distinct());
  for (std::size_t i = trace.num_requests(); i-- > 0;) {
    const auto blocks = trace.request(i);
    goes_on_[i] = !blocks.empty() && comes[blocks.back()];
    for (const std::uint32_t block : blocks) comes[block] = true;
  }
}

Hint ClientHints::after(std::size_t request) {
  switch (style_) {
    case HintStyle::kNone:
      return Hint::kNothing;
    case HintStyle::kRight:
      return goes_on_[request] ? Hint::kRetain : Hint::kDemote;
    case HintStyle::kWrong:
      return goes_on_[request] ? Hint::kDemote : Hint::kRetain;
    case HintStyle::kRandom:
      return static_cast<Hint>(random_() % 3);
    case HintStyle::kRetain:
      return Hint::kRetain;
    case HintStyle::kDemote:
      return Hint::kDemote;
  }
  return Hint::kNothing;
}

std::size_t ClientHints::time_to_live() {
  return style_ == HintStyle::kRandom ? 1 + random_() % kMostRandom
                                      : std::numeric_limits<std::uint32_t>::max();
}

}  // namespace kvferry::bench::trace
