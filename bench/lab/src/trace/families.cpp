// SPDX-License-Identifier: Apache-2.0
#include "trace/families.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

namespace kvferry::bench::trace {
namespace {

using Request = std::vector<std::uint32_t>;
using Requests = std::vector<Request>;

/// Makes requests out of blocks that nobody had before.
class Maker {
 public:
  explicit Maker(std::uint64_t seed) : random_(seed) {}

  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(random_() % bound); }
  bool chance(double probability) {
    return static_cast<double>(random_() >> 11) * 0x1p-53 < probability;
  }
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

  /// Questions to documents of 12 blocks, the k-th of which is asked for as k^-exponent; each adds
  /// two blocks of its own.
  Requests zipf(std::uint32_t num_documents, double exponent, std::uint32_t count) {
    const Requests library = documents(num_documents, 12);
    std::vector<double> sums;
    for (std::uint32_t k = 1; k <= num_documents; ++k) {
      sums.push_back((sums.empty() ? 0 : sums.back()) + std::pow(k, -exponent));
    }
    Requests requests;
    for (std::uint32_t i = 0; i < count; ++i) {
      const double drawn = static_cast<double>(random_() >> 11) * 0x1p-53 * sums.back();
      const auto which = std::lower_bound(sums.begin(), sums.end(), drawn) - sums.begin();
      requests.push_back(library[static_cast<std::size_t>(which)]);
      extend(requests.back(), 2);
    }
    return requests;
  }
  /// One document after the other, again and again.
  Requests loop(std::uint32_t num_documents, std::uint32_t count) {
    const Requests library = documents(num_documents, 12);
    Requests requests;
    for (std::uint32_t i = 0; i < count; ++i) requests.push_back(library[i % num_documents]);
    return requests;
  }
  Requests one_shot(std::uint32_t length, std::uint32_t count) { return documents(count, length); }
  /// Conversations that share a system prompt, `num_alive` at any time: a turn of any of them adds
  /// one to five blocks, and one ends with the given chance per turn.
  Requests sessions(std::uint32_t num_alive, double ends, std::uint32_t count) {
    const Request system = document(4);
    Requests alive(num_alive);
    Requests requests;
    for (std::uint32_t i = 0; i < count; ++i) {
      Request& session = alive[below(num_alive)];
      const bool begins = session.empty() || chance(ends);
      if (begins) session = system;
      extend(session, begins ? 4 + below(12) : 1 + below(5));
      requests.push_back(session);
    }
    return requests;
  }
  /// Each request from any of the lists that are not at their end.
  Requests mix(const std::vector<Requests>& lists) {
    std::vector<std::size_t> at(lists.size(), 0);
    std::size_t left = 0;
    for (const Requests& list : lists) left += list.size();
    Requests mixed;
    while (left > 0) {
      const std::uint32_t which = below(static_cast<std::uint32_t>(lists.size()));
      if (at[which] == lists[which].size()) continue;
      mixed.push_back(lists[which][at[which]++]);
      --left;
    }
    return mixed;
  }

 private:
  std::mt19937_64 random_;
  std::uint32_t next_ = 0;
};

Requests operator+(Requests first, const Requests& then) {
  first.insert(first.end(), then.begin(), then.end());
  return first;
}

Trace to_trace(const Requests& requests) {
  Trace trace("family");
  for (const Request& request : requests) trace.add_request(request);
  return trace;
}

template <class Make>
Trace made(std::uint64_t seed, const Make& make) {
  Maker maker(seed);
  return to_trace(make(maker));
}

#define KVFERRY_FAMILY(name, about, expression)                               \
  Family {                                                                    \
    name, about, [](std::uint64_t seed) {                                     \
      return made(seed, [](Maker& maker) -> Requests { return expression; }); \
    }                                                                         \
  }

const std::array kFamilies{
    KVFERRY_FAMILY("zipf-0.7", "questions to 2,000 documents", maker.zipf(2000, 0.7, 20000)),
    KVFERRY_FAMILY("zipf-1.0", "questions to 2,000 documents", maker.zipf(2000, 1.0, 20000)),
    KVFERRY_FAMILY("zipf-1.0-long-tail", "questions to 20,000 documents",
                   maker.zipf(20000, 1.0, 20000)),
    KVFERRY_FAMILY("loop-0.9", "a loop of 0.9 of the tier", maker.loop(225, 20000)),
    KVFERRY_FAMILY("loop-1.1", "a loop of 1.1 of the tier", maker.loop(275, 20000)),
    KVFERRY_FAMILY("loop-1.5", "a loop of 1.5 of the tier", maker.loop(375, 20000)),
    KVFERRY_FAMILY("loop-3", "a loop of three tiers", maker.loop(750, 20000)),
    KVFERRY_FAMILY("one-shot", "prompts that nobody sends twice", maker.one_shot(14, 20000)),
    KVFERRY_FAMILY("sessions-100", "100 conversations at a time", maker.sessions(100, 0.1, 20000)),
    KVFERRY_FAMILY("sessions-300", "300 conversations at a time", maker.sessions(300, 0.1, 20000)),
    KVFERRY_FAMILY("sessions-1000", "1,000 short conversations at a time",
                   maker.sessions(1000, 0.2, 20000)),
    KVFERRY_FAMILY("long-sessions", "300 conversations of 33 turns",
                   maker.sessions(300, 0.03, 10000)),
    KVFERRY_FAMILY("sessions+one-shot", "a mixture of both",
                   maker.mix({maker.sessions(100, 0.1, 10000), maker.one_shot(20, 10000)})),
    KVFERRY_FAMILY("zipf+one-shot", "a mixture of both",
                   maker.mix({maker.zipf(400, 0.8, 10000), maker.one_shot(20, 10000)})),
    KVFERRY_FAMILY("zipf+loop", "a mixture of both",
                   maker.mix({maker.loop(200, 10000), maker.zipf(1000, 0.9, 10000)})),
    KVFERRY_FAMILY("phases", "conversations, one-shot, zipf, other conversations",
                   maker.sessions(100, 0.1, 8000) + maker.one_shot(20, 5000) +
                       maker.zipf(1000, 0.9, 8000) + maker.sessions(300, 0.2, 8000)),
    KVFERRY_FAMILY("short-phases", "conversations and zipf with one-shot, three times",
                   maker.mix({maker.zipf(200, 0.8, 1500), maker.one_shot(30, 1500)}) +
                       maker.sessions(100, 0.1, 3000) +
                       maker.mix({maker.zipf(200, 0.8, 1500), maker.one_shot(30, 1500)}) +
                       maker.sessions(100, 0.1, 3000) +
                       maker.mix({maker.zipf(200, 0.8, 1500), maker.one_shot(30, 1500)}) +
                       maker.sessions(100, 0.1, 3000)),
};

#undef KVFERRY_FAMILY

}  // namespace

std::span<const Family> families() { return kFamilies; }

}  // namespace kvferry::bench::trace
