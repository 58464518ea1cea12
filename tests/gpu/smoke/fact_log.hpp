// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>

namespace kvferry::smoke {

struct Fact {
  bool ok = true;
  std::string detail;
  double value = 0;
  /// Empty: there is no value.
  std::string unit;
  /// It informs; whatever it says is fine with us.
  bool is_note = false;
};

/// Says each fact as soon as it is known: a line of text, and a line of JSON in one write, so that
/// the file has whole lines whenever the process ends. Ends the process with 9 when its time is up,
/// naming the fact under way.
class FactLog {
 public:
  /// `path` may be empty. Appends.
  FactLog(const std::string& path, std::chrono::seconds limit);
  /// Runs `settle`; what it throws is a fact that failed.
  void check(const std::string& name, const std::function<Fact()>& settle);
  [[nodiscard]] bool all_ok() const { return all_ok_; }

 private:
  using Clock = std::chrono::steady_clock;
  void say(const std::string& name, const Fact& fact, double seconds) const;
  void watch(Clock::time_point end) const;

  int file_ = -1;
  bool all_ok_ = true;
  /// A string that lives as long as the process.
  std::atomic<const std::string*> under_way_{nullptr};
};

}  // namespace kvferry::smoke
