// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trace/trace.hpp"

#include <cstdint>
#include <string>

namespace kvferry::bench::trace {

/// Traffic that was made up at random.
struct Mixture {
  std::string about;  ///< Kinds of its phases, for people.
  Trace trace;
};

/// One to three phases, each of one to three kinds of traffic with random parameters that run
/// beside each other, some by day and some by night. Some 50,000 to 300,000 accesses. The same seed
/// gives the same mixture.
[[nodiscard]] Mixture random_mixture(std::uint64_t seed);

}  // namespace kvferry::bench::trace
