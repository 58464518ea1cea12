// SPDX-License-Identifier: Apache-2.0
#include "trace/plain_traffic.hpp"

namespace kvferry::bench::trace {

Requests zipf(RequestMaker& maker, std::uint32_t num_documents, double exponent,
              std::uint32_t count) {
  const Requests library = maker.documents(num_documents, 12);
  const Popularity popularity(num_documents, exponent);
  Requests requests;
  for (std::uint32_t i = 0; i < count; ++i) {
    requests.push_back(library[popularity.draw(maker)]);
    maker.extend(requests.back(), 2);
  }
  return requests;
}

Requests loop(RequestMaker& maker, std::uint32_t num_documents, std::uint32_t count) {
  const Requests library = maker.documents(num_documents, 12);
  Requests requests;
  for (std::uint32_t i = 0; i < count; ++i) requests.push_back(library[i % num_documents]);
  return requests;
}

Requests one_shot(RequestMaker& maker, std::uint32_t length, std::uint32_t count) {
  return maker.documents(count, length);
}

Requests sessions(RequestMaker& maker, std::uint32_t num_alive, double ends, std::uint32_t count) {
  const Request system = maker.document(4);
  Requests alive(num_alive);
  Requests requests;
  for (std::uint32_t i = 0; i < count; ++i) {
    Request& session = alive[maker.below(num_alive)];
    const bool begins = session.empty() || maker.chance(ends);
    if (begins) session = system;
    maker.extend(session, begins ? 4 + maker.below(12) : 1 + maker.below(5));
    requests.push_back(session);
  }
  return requests;
}

Requests mix(RequestMaker& maker, const std::vector<Requests>& lists) {
  std::vector<std::size_t> at(lists.size(), 0);
  std::size_t left = 0;
  for (const Requests& list : lists) left += list.size();
  Requests mixed;
  while (left > 0) {
    const std::uint32_t which = maker.below(static_cast<std::uint32_t>(lists.size()));
    if (at[which] == lists[which].size()) continue;
    mixed.push_back(lists[which][at[which]++]);
    --left;
  }
  return mixed;
}

}  // namespace kvferry::bench::trace
