// SPDX-License-Identifier: Apache-2.0
// An object store whose records another program damages between its calls. An input is a list of
// steps, each a byte and what it takes.
#include "kvferry/base/check.hpp"

#include "store_rig.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::fuzz {
namespace {

using lmcache::ChunkMemory;
using lmcache::Item;
using lmcache::ObjectStore;
using lmcache::SlotRecord;

constexpr int kMostSteps = 64;
constexpr std::uint32_t kNumKeys = 4;
constexpr std::array<std::uint64_t, 6> kValueBytes{0, 1, 100, 1000, 4000, 16'000};
constexpr std::array<std::size_t, 6> kKeyBytes{1,
                                               8,
                                               SlotRecord::kInlineKeyBytes - 1,
                                               SlotRecord::kInlineKeyBytes,
                                               SlotRecord::kInlineKeyBytes + 1,
                                               3000};
constexpr std::array<std::uint64_t, 12> kFigures{0,
                                                 1,
                                                 240,
                                                 241,
                                                 1000,
                                                 4096,
                                                 16'000,
                                                 3000,
                                                 0xffff'ffff,
                                                 std::uint64_t{1} << 63U,
                                                 ~std::uint64_t{0},
                                                 ~std::uint64_t{0} - 240};

class Story {
 public:
  explicit Story(std::span<const std::uint8_t> input) : input_(input) {
    auto memory = lmcache::plain_memory(lmcache::kLeastCapacityBytes);
    memory_ = memory.get();
    store_ = std::make_unique<ObjectStore>(std::move(memory), cpu_tier::Eviction::kLru);
  }

  void play() {
    for (int i = 0; i < kMostSteps && !input_.empty(); ++i) step();
    for (std::uint32_t how = 0; how < kNumKeys * kKeyBytes.size(); ++how) {
      static_cast<void>(lmcache::has(*store_, key(how)));
      for (const std::uint64_t bytes : kValueBytes) get({key(how), bytes});
    }
    store_->check_invariants();
  }

 private:
  std::uint8_t byte() {
    if (input_.empty()) return 0;
    const std::uint8_t next = input_.front();
    input_ = input_.subspan(1);
    return next;
  }

  static std::string key(std::uint32_t how) {
    std::string key(kKeyBytes[how / kNumKeys % kKeyBytes.size()], 'k');
    key[0] = static_cast<char>('a' + how % kNumKeys);
    return key;
  }
  Item item() {
    std::string wanted = key(byte());
    return {std::move(wanted), kValueBytes[byte() % kValueBytes.size()]};
  }

  void step() {
    switch (byte() % 8) {
      case 0:
      case 1:
        return put();
      case 2:
      case 3:
        return get(item());
      case 4:
        static_cast<void>(lmcache::has(*store_, item().key));
        return;
      case 5:
        static_cast<void>(lmcache::forget(*store_, item().key));
        return;
      default:
        return damage();
    }
  }

  void put() {
    const std::vector<Item> items{item()};
    auto reserved = store_->reserve(lmcache::keys_of(items), lmcache::sizes_of(items));
    if (!reserved.ok()) return;
    auto values = std::move(reserved).value();
    if (std::byte* const place = values.places()[0]) {
      const auto value = lmcache::value_of(items[0].key, items[0].bytes);
      if (!value.empty()) std::memcpy(place, value.data(), value.size());
      SlotRecord* const record = record_of(place, items[0]);
      damaged_.erase(record);
      written_.push_back(record);
    }
    store_->commit(std::move(values));
  }

  /// What is served is the key's, unless its record was damaged to say so.
  void get(const Item& wanted) {
    const std::vector<Item> items{wanted};
    auto values = store_->lease(lmcache::keys_of(items), lmcache::sizes_of(items));
    if (const std::byte* const place = values.places()[0]) {
      const std::vector<std::byte> found(place, place + wanted.bytes);
      KVFERRY_CHECK(
          damaged_.contains(record_of(place, wanted)) || lmcache::is_value_of(found, wanted.key),
          "a value is served that is another key's");
    }
    store_->release(std::move(values));
  }

  [[nodiscard]] SlotRecord* record_of(const std::byte* place, const Item& of) const {
    const auto& geometry = memory_->geometry();
    const auto size = geometry.size_for(of.bytes, of.key.size());
    KVFERRY_CHECK(size.has_value(), "a value has a place that fits nowhere");
    const auto offset = static_cast<std::uint64_t>(place - memory_->chunk(ChunkId(0)));
    const lmcache::SlotSize& slots = geometry.sizes[*size];
    const std::uint64_t index = offset % geometry.chunk_bytes / slots.bytes;
    KVFERRY_CHECK(offset / geometry.chunk_bytes < geometry.num_chunks && index < slots.num_slots,
                  "a value lies outside of its chunk's slots");
    return &memory_->record(ChunkId(static_cast<std::uint32_t>(offset / geometry.chunk_bytes)),
                            static_cast<std::uint32_t>(index));
  }

  void damage() {
    if (written_.empty()) return;
    SlotRecord& record = *written_[byte() % written_.size()];
    const std::uint8_t what = byte();
    const std::uint64_t figure = kFigures[byte() % kFigures.size()];
    switch (what % 4) {
      case 0:
        record.value_bytes = figure;
        break;
      case 1:
        record.key_bytes = figure;
        break;
      case 2:
        record.key[figure % record.key.size()] ^= static_cast<char>(what);
        break;
      default:
        record = *written_[byte() % written_.size()];
    }
    damaged_.insert(&record);
  }

  std::span<const std::uint8_t> input_;
  ChunkMemory* memory_ = nullptr;
  std::unique_ptr<ObjectStore> store_;
  /// That ever were.
  std::vector<SlotRecord*> written_;
  std::set<const SlotRecord*> damaged_;
};

}  // namespace
}  // namespace kvferry::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvferry::fuzz::Story({data, size}).play();
  return 0;
}
