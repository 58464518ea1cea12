// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <string>

namespace kvferry::bench {

/// Where progress is shown.
enum class ProgressStyle : std::uint8_t {
  kTerminal,  ///< One line that is overwritten.
  kLines      ///< A line every 10 s, for logs.
};

/// Shows what is being measured. Shows nothing in the first second.
class Progress {
 public:
  Progress(std::ostream& out, ProgressStyle style);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// Clears the line.
  ~Progress();

  /// Adds `num_rows` to the number of expected rows.
  void expect(std::size_t num_rows) { num_rows_ += num_rows; }
  /// `what` is measured now: one row, or several at the same time.
  void begin_row(std::string what, std::size_t num_rows = 1);
  /// Call it often; it shows something when it is time.
  void round(std::uint32_t done, std::uint32_t of);

 private:
  using Clock = std::chrono::steady_clock;

  std::ostream& out_;
  const ProgressStyle style_;
  Clock::time_point next_;
  std::size_t num_rows_ = 0;
  std::size_t row_ = 0;  ///< The first of the rows that are measured now.
  std::size_t next_row_ = 1;
  std::string what_;
  bool shown_ = false;
};

}  // namespace kvferry::bench
