// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/lmcache/object_client.hpp"

#include "store_rig.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <poll.h>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::lmcache {

constexpr std::chrono::seconds kHang{60};

/// A client, and what its user does with it.
class ClientRig {
 public:
  explicit ClientRig(std::uint64_t capacity_bytes, std::uint32_t num_workers = 2)
      : ClientRig(make_store(capacity_bytes), num_workers) {}
  ClientRig(std::unique_ptr<ObjectStore> store, std::uint32_t num_workers,
            Verification verify = Verification::kAll)
      : client(std::move(store), num_workers, verify) {}

  BatchId set(const std::vector<Item>& items, const std::vector<std::vector<std::byte>>& values) {
    std::vector<std::span<const std::byte>> views(values.begin(), values.end());
    return client.submit_set(keys_of(items), views);
  }
  BatchId get(const std::vector<Item>& items, std::vector<std::vector<std::byte>>& buffers) {
    std::vector<std::span<std::byte>> views(buffers.begin(), buffers.end());
    return client.submit_get(keys_of(items), views);
  }
  /// Waits for the completion of a batch; others are kept.
  Completion await(BatchId id) {
    const auto end = std::chrono::steady_clock::now() + kHang;
    while (!completed.contains(id) && std::chrono::steady_clock::now() < end) {
      pollfd fd{client.event_fd(), POLLIN, 0};
      static_cast<void>(::poll(&fd, 1, 100));
      take();
    }
    EXPECT_TRUE(completed.contains(id)) << "no completion of batch " << id.value();
    Completion found = std::move(completed[id]);
    completed.erase(id);
    return found;
  }
  void take() {
    for (Completion& completion : client.drain()) {
      EXPECT_TRUE(seen.emplace(completion.id, true).second)
          << "batch " << completion.id.value() << " completed twice";
      order.push_back(completion.id);
      completed[completion.id] = std::move(completion);
    }
  }
  Completion put(const std::vector<Item>& items) {
    std::vector<std::vector<std::byte>> values;
    for (const Item& item : items) values.push_back(value_of(item.key, item.bytes));
    return await(set(items, values));
  }

  ObjectClient client;
  std::map<BatchId, Completion> completed;
  std::map<BatchId, bool> seen;
  std::vector<BatchId> order;  ///< Of the completions.
};

inline bool readable(int descriptor) {
  pollfd fd{descriptor, POLLIN, 0};
  return ::poll(&fd, 1, 0) == 1;
}

inline std::vector<std::vector<std::byte>> buffers_for(const std::vector<Item>& items,
                                                       std::byte fill = std::byte{0xee}) {
  std::vector<std::vector<std::byte>> buffers;
  for (const Item& item : items) buffers.emplace_back(item.bytes, fill);
  return buffers;
}

inline std::vector<Item> numbered(const std::string& prefix, int count, std::uint64_t bytes) {
  std::vector<Item> some;
  for (int i = 0; i < count; ++i) some.push_back({prefix + std::to_string(i), bytes});
  return some;
}

}  // namespace kvferry::lmcache
