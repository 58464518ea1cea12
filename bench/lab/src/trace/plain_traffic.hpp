// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trace/request_maker.hpp"

#include <cstdint>
#include <vector>

/// Kinds of traffic with one property each: popularity, a loop, a scan, conversations.
namespace kvferry::bench::trace {

/// Questions about documents of 12 blocks. The k-th document is requested with a probability
/// proportional to k^-exponent. Each question adds two blocks of its own.
[[nodiscard]] Requests zipf(RequestMaker& maker, std::uint32_t num_documents, double exponent,
                            std::uint32_t count);
/// Documents of 12 blocks, one after the other, again and again.
[[nodiscard]] Requests loop(RequestMaker& maker, std::uint32_t num_documents, std::uint32_t count);
[[nodiscard]] Requests one_shot(RequestMaker& maker, std::uint32_t length, std::uint32_t count);
/// Conversations that share a system prompt; `num_alive` are alive at any time. Each turn adds one
/// to five blocks, and ends its conversation with the given probability.
[[nodiscard]] Requests sessions(RequestMaker& maker, std::uint32_t num_alive, double ends,
                                std::uint32_t count);
/// Takes each next request from a random list that has requests left.
[[nodiscard]] Requests mix(RequestMaker& maker, const std::vector<Requests>& lists);

}  // namespace kvferry::bench::trace
