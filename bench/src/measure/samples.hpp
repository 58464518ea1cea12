// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <vector>

namespace kvferry::bench {

/// Repeated measurements of one time.
class Samples {
 public:
  void add(std::chrono::nanoseconds sample) { samples_.push_back(sample); }
  [[nodiscard]] bool empty() const { return samples_.empty(); }
  [[nodiscard]] std::size_t size() const { return samples_.size(); }
  /// In microseconds. There is at least one sample.
  [[nodiscard]] double mean_us() const;
  /// The smallest sample that at least the share `q` of all samples, in (0, 1], does not exceed;
  /// 0.5 is the median. In microseconds. There is at least one sample.
  [[nodiscard]] double percentile_us(double q) const;

 private:
  std::vector<std::chrono::nanoseconds> samples_;
};

}  // namespace kvferry::bench
