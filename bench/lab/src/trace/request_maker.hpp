// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trace/trace.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace kvferry::bench::trace {

/// The blocks of a request.
using Request = std::vector<std::uint32_t>;
using Requests = std::vector<Request>;

/// A request and the time of its arrival, in seconds.
struct TimedRequest {
  double seconds = 0;
  Request blocks;
};
using TimedRequests = std::vector<TimedRequest>;

/// Concatenates two lists of Requests or of TimedRequests.
template <typename One>
[[nodiscard]] std::vector<One> operator+(std::vector<One> first, const std::vector<One>& then) {
  first.insert(first.end(), then.begin(), then.end());
  return first;
}

/// Makes requests with blocks that no earlier request had. The same seed makes the same requests.
class RequestMaker {
 public:
  explicit RequestMaker(std::uint64_t seed) : random_(seed) {}

  // ---- numbers ----

  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(random_() % bound); }
  /// In [least, most].
  std::uint32_t between(std::uint32_t least, std::uint32_t most) {
    return least + below(most - least + 1);
  }
  double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
  double uniform(double least, double most) { return least + (most - least) * uniform(); }
  bool chance(double probability) { return uniform() < probability; }
  /// Exponential.
  double wait(double mean) { return -mean * std::log(1 - uniform()); }
  /// Lognormal: half of the values are below `median`; `spread` is the deviation of the logarithm.
  double around(double median, double spread) {
    const double angle = 2 * 3.14159265358979323846 * uniform();  // Box and Muller 1958.
    return median * std::exp(spread * std::sqrt(-2 * std::log(1 - uniform())) * std::cos(angle));
  }
  /// The same as a count of blocks, in [1, most].
  std::uint32_t blocks_around(double median, double spread, std::uint32_t most) {
    return static_cast<std::uint32_t>(std::clamp(around(median, spread), 1.0, double(most)));
  }

  // ---- blocks ----

  void extend(Request& request, std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) request.push_back(next_++);
  }
  Request document(std::uint32_t length) {
    Request blocks;
    extend(blocks, length);
    return blocks;
  }
  Requests documents(std::uint32_t count, std::uint32_t length) {
    Requests all;
    for (std::uint32_t i = 0; i < count; ++i) all.push_back(document(length));
    return all;
  }

 private:
  std::mt19937_64 random_;
  std::uint32_t next_ = 0;
};

/// Draws k in [0, count) with a probability proportional to (k + 1)^-exponent.
class Popularity {
 public:
  Popularity(std::uint32_t count, double exponent) {
    for (std::uint32_t k = 1; k <= count; ++k) {
      sums_.push_back((sums_.empty() ? 0 : sums_.back()) + std::pow(k, -exponent));
    }
  }
  std::uint32_t draw(RequestMaker& maker) const {
    const double drawn = maker.uniform() * sums_.back();
    return static_cast<std::uint32_t>(std::lower_bound(sums_.begin(), sums_.end(), drawn) -
                                      sums_.begin());
  }

 private:
  std::vector<double> sums_;
};

/// Sorts requests by time; requests with the same time keep their order.
inline void sort_by_time(TimedRequests& timed) {
  std::stable_sort(timed.begin(), timed.end(), [](const TimedRequest& a, const TimedRequest& b) {
    return a.seconds < b.seconds;
  });
}

/// The requests without their times, ordered by time.
[[nodiscard]] inline Requests in_order(TimedRequests timed) {
  sort_by_time(timed);
  Requests requests;
  requests.reserve(timed.size());
  for (TimedRequest& one : timed) requests.push_back(std::move(one.blocks));
  return requests;
}

}  // namespace kvferry::bench::trace
