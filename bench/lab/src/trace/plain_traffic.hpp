// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trace/request_maker.hpp"

#include <cstdint>
#include <vector>

/// Traffic of one property each: popularity, a loop, a scan, conversations.
namespace kvferry::bench::trace {

/// Questions to documents of 12 blocks, the k-th of which is asked for as k^-exponent; each adds
/// two blocks of its own.
[[nodiscard]] Requests zipf(RequestMaker& maker, std::uint32_t num_documents, double exponent,
                            std::uint32_t count);
/// One document of 12 blocks after the other, again and again.
[[nodiscard]] Requests loop(RequestMaker& maker, std::uint32_t num_documents, std::uint32_t count);
[[nodiscard]] Requests one_shot(RequestMaker& maker, std::uint32_t length, std::uint32_t count);
/// Conversations that share a system prompt, `num_alive` at any time: a turn of any of them adds
/// one to five blocks, and one ends with the given chance per turn.
[[nodiscard]] Requests sessions(RequestMaker& maker, std::uint32_t num_alive, double ends,
                                std::uint32_t count);
/// Each request from any of the lists that are not at their end.
[[nodiscard]] Requests mix(RequestMaker& maker, const std::vector<Requests>& lists);

}  // namespace kvferry::bench::trace
