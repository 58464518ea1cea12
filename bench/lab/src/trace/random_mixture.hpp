// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trace/trace.hpp"

#include <cstdint>
#include <string>

namespace kvferry::bench::trace {

/// Random synthetic traffic.
struct Mixture {
  std::string about;  ///< The kinds of its phases, as text.
  Trace trace;
};

/// One to three phases. Each phase has one to three kinds of traffic with random parameters, which
/// run at the same time, some by day and some by night. In a quarter of the mixtures all blocks are
/// divided into 2 to 12. About 50,000 to 400,000 accesses. The same seed gives the same mixture.
[[nodiscard]] Mixture random_mixture(std::uint64_t seed);

}  // namespace kvferry::bench::trace
