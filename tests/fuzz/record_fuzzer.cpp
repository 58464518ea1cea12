// SPDX-License-Identifier: Apache-2.0
// An object store whose records and values another program damages between its calls. An input is a
// list of steps, each a byte and what it takes.
#include "kvferry/base/check.hpp"
#include "kvferry/gpu/tag_sum.hpp"

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
                                                 SlotRecord::kInlineKeyBytes,
                                                 SlotRecord::kInlineKeyBytes + 1,
                                                 1000,
                                                 4096,
                                                 16'000,
                                                 3000,
                                                 0xffff'ffff,
                                                 std::uint64_t{1} << 63U,
                                                 ~std::uint64_t{0},
                                                 ~std::uint64_t{0} - SlotRecord::kInlineKeyBytes};

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
    std::vector<std::uint64_t> sums(1);
    if (std::byte* const place = values.places()[0]) {
      const auto value = lmcache::value_of(items[0].key, items[0].bytes);
      sums[0] = gpu::copy_and_sum(place, value, 0, value.data());
      SlotRecord* const record = record_of(place, items[0]);
      damaged_.erase(record);
      // The key may lie after the value.
      forget_what_lies_in({place, items[0].bytes + items[0].key.size()});
      forget_what_lies_in(std::as_writable_bytes(std::span(record, 1)));
      written_.push_back({record, {place, items[0].bytes}});
    }
    store_->commit(std::move(values), sums);
  }

  /// What was there is not in use any more, and must not be damaged in place of what is.
  void forget_what_lies_in(std::span<const std::byte> fresh) {
    const auto meets = [&](std::span<const std::byte> old) {
      return old.data() < fresh.data() + fresh.size() && fresh.data() < old.data() + old.size();
    };
    std::erase_if(written_, [&](const Written& old) {
      return meets(old.value) || meets(std::as_bytes(std::span(old.record, 1)));
    });
  }

  /// What is served is the key's, unless its record was damaged so that there is no tag.
  void get(const Item& wanted) {
    const std::vector<Item> items{wanted};
    auto values = store_->lease(lmcache::keys_of(items), lmcache::sizes_of(items));
    if (const std::byte* const place = values.places()[0]) {
      const std::vector<std::byte> found(place, place + wanted.bytes);
      const std::vector<std::uint64_t> sums{gpu::tag_sum(found, 0)};
      const SlotRecord* const record = record_of(place, wanted);
      const bool is_damaged = damaged_.contains(record);
      const bool is_refused = !store_->withdraw_damaged(values, sums).empty();
      KVFERRY_CHECK(is_refused || (is_damaged && record->tag == gpu::kNoTag) ||
                        lmcache::is_value_of(found, wanted.key),
                    "a value is served that is another key's");
      KVFERRY_CHECK(!is_refused || is_damaged, "a whole value is refused");
    }
    store_->release(std::move(values));
  }

  [[nodiscard]] SlotRecord* record_of(const std::byte* place, const Item& of) const {
    return lmcache::record_at(*memory_, place, of);
  }

  void damage() {
    if (written_.empty()) return;
    const Written& which = written_[byte() % written_.size()];
    SlotRecord& record = *which.record;
    const std::uint8_t what = byte();
    const std::uint64_t figure = kFigures[byte() % kFigures.size()];
    switch (what % 6) {
      case 0:
        record.value_bytes = figure;
        break;
      case 1:
        record.key_bytes = figure;
        break;
      case 2:
        record.key[figure % record.key.size()] ^= static_cast<char>(what);
        break;
      case 3:
        record.tag = figure;
        break;
      case 4:
        if (!which.value.empty()) which.value[figure % which.value.size()] ^= std::byte{what};
        break;
      default:
        record = *written_[byte() % written_.size()].record;
    }
    damaged_.insert(&record);
  }

  struct Written {
    SlotRecord* record;
    std::span<std::byte> value;
  };

  std::span<const std::uint8_t> input_;
  ChunkMemory* memory_ = nullptr;
  std::unique_ptr<ObjectStore> store_;
  std::vector<Written> written_;
  std::set<const SlotRecord*> damaged_;
};

}  // namespace
}  // namespace kvferry::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvferry::fuzz::Story({data, size}).play();
  return 0;
}
