// SPDX-License-Identifier: Apache-2.0
#include "measure/samples.hpp"

#include "kvferry/base/check.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvferry::bench {
namespace {

double microseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

}  // namespace

double Samples::mean_us() const {
  KVFERRY_CHECK(!samples_.empty(), "the mean of no samples");
  const auto sum =
      std::accumulate(samples_.begin(), samples_.end(), std::chrono::nanoseconds::zero());
  return microseconds(sum) / static_cast<double>(samples_.size());
}

double Samples::percentile_us(double q) const {
  KVFERRY_CHECK(!samples_.empty() && q > 0 && q <= 1, "a percentile of no samples, or none");
  std::vector<std::chrono::nanoseconds> sorted = samples_;
  std::sort(sorted.begin(), sorted.end());
  const auto rank = static_cast<std::size_t>(std::ceil(q * static_cast<double>(sorted.size())));
  return microseconds(sorted[std::clamp<std::size_t>(rank, 1, sorted.size()) - 1]);
}

}  // namespace kvferry::bench
