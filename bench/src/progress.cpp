// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <fmt/format.h>

#include <ostream>
#include <utility>

namespace kvferry::bench {
namespace {

constexpr std::chrono::milliseconds kTerminalPeriod{200};
constexpr std::chrono::seconds kLinePeriod{10};
constexpr std::chrono::seconds kQuietTime{1};
constexpr const char* kWipe = "\r\x1b[K";

}  // namespace

Progress::Progress(std::ostream& out, ProgressStyle style)
    : out_(out),
      style_(style),
      next_(Clock::now() + (style == ProgressStyle::kTerminal ? kQuietTime : kLinePeriod)) {}

Progress::~Progress() {
  if (shown_ && style_ == ProgressStyle::kTerminal) out_ << kWipe << std::flush;
}

void Progress::begin_row(std::string what, std::size_t num_rows) {
  row_ = next_row_;
  next_row_ += num_rows;
  what_ = std::move(what);
}

void Progress::round(std::uint32_t done, std::uint32_t of) {
  if (Clock::now() < next_) return;
  const std::string text =
      fmt::format("row {} of {}: {}, round {} of {}", row_, num_rows_, what_, done, of);
  if (style_ == ProgressStyle::kTerminal) {
    out_ << kWipe << text << std::flush;
    next_ = Clock::now() + kTerminalPeriod;
  } else {
    out_ << text << std::endl;
    next_ = Clock::now() + kLinePeriod;
  }
  shown_ = true;
}

}  // namespace kvferry::bench
