// SPDX-License-Identifier: Apache-2.0
// The operations of `meta` that take slots.
#include "meta/meta_operations.hpp"

#include <array>
#include <utility>

namespace kvferry::bench {
namespace {

using cpu_tier::Admission;
using cpu_tier::BlockKey;
using cpu_tier::Eviction;
using cpu_tier::KeyState;
using Nanoseconds = std::chrono::nanoseconds;

// The goal with half a million blocks: a request of 128k tokens, which is 8,192 blocks, should cost
// the scheduler a millisecond.
constexpr double kStoreGoal = 120;

/// Reserves and commits in a full tier. Each reservation evicts as many slots as it takes.
class Store final : public MetaOperation {
 public:
  explicit Store(const MetaShape& shape)
      : MetaOperation(shape),
        knows_victims_(shape.policy.eviction == Eviction::kLru &&
                       shape.policy.admission == Admission::kAlways) {}
  [[nodiscard]] std::span<const MetaPart> parts() const override {
    static constexpr std::array<MetaPart, 3> kParts = {
        {{"reserve, evicting"}, {"commit"}, {"reserve + commit", true, kStoreGoal, kStoreGoal}}};
    return kParts;
  }
  [[nodiscard]] std::vector<Nanoseconds> run() override {
    taken_.clear();
    taken_.reserve(num_keys() / batch_);
    const Nanoseconds reserved = time_calls([this](std::size_t, std::span<const BlockKey> keys) {
      taken_.push_back(std::move(rig_.tier().reserve(MetaRig::kOnly, keys)).value().hand_over());
    });
    num_writable_ = rig_.tier().snapshot().num_writable;
    const Nanoseconds committed = time_calls([this](std::size_t first, std::span<const BlockKey>) {
      rig_.tier().commit(std::move(taken_[first / batch_]));
    });
    return {reserved, committed, reserved + committed};
  }

 private:
  [[nodiscard]] MetaKeys choose() override {
    MetaKeys stored = rig_.draw_new();
    bare_leaving_ = rig_.oldest();
    if (knows_victims_) leaving_ = bare_leaving_;
    rig_.replace_oldest(stored);
    for (const std::uint64_t number : stored.numbers) {
      new_values_.push_back(static_cast<std::uint32_t>(number));
    }
    return stored;
  }
  void do_bare() override {
    const std::span<const BlockKey> leaving(bare_leaving_.keys);
    const std::span<const BlockKey> stored(blocks_.keys);
    const std::span<const std::uint32_t> values(new_values_);
    for (std::size_t first = 0; first < num_keys(); first += batch_) {
      rig_.bare().erase(leaving.subspan(first, batch_));
      rig_.bare().insert(stored.subspan(first, batch_), values.subspan(first, batch_));
    }
  }
  void check_answers(AnswerSheet& sheet) override {
    sheet.expect(num_writable_, num_keys());
    expect_states(sheet, blocks_.keys, KeyState::kReadable);
    expect_states(sheet, leaving_.keys, KeyState::kAbsent);
    rig_.bare().find(blocks_.keys, values_);
    expect_values(sheet, Holds::kAll);
    rig_.bare().find(bare_leaving_.keys, values_);
    expect_values(sheet, Holds::kNone);
    new_values_.clear();
  }
  [[nodiscard]] Moved moved() const override { return {num_keys(), num_keys(), num_keys(), 0}; }

  const bool knows_victims_;
  MetaKeys bare_leaving_;
  std::vector<std::uint32_t> new_values_;
  std::vector<cpu_tier::WritableSlots> taken_;
  std::uint64_t num_writable_ = 0;
};

/// Reserves slots of a tier that has free ones, and drops the reservation.
class Free final : public MetaOperation {
 public:
  explicit Free(const MetaShape& shape) : MetaOperation(shape, shape.keys_per_round()) {}
  [[nodiscard]] std::span<const MetaPart> parts() const override {
    static constexpr std::array<MetaPart, 2> kParts = {{{"reserve, free slots"}, {"give back"}}};
    return kParts;
  }
  [[nodiscard]] std::vector<Nanoseconds> run() override {
    taken_.clear();
    taken_.reserve(num_keys() / batch_);
    const Nanoseconds reserved = time_calls([this](std::size_t, std::span<const BlockKey> keys) {
      taken_.push_back(std::move(rig_.tier().reserve(MetaRig::kOnly, keys)).value());
    });
    num_writable_ = rig_.tier().snapshot().num_writable;
    return {reserved, time_once([this] { taken_.clear(); })};
  }

 private:
  [[nodiscard]] MetaKeys choose() override { return rig_.draw_new(); }
  void check_answers(AnswerSheet& sheet) override {
    sheet.expect(num_writable_, num_keys());
    expect_states(sheet, blocks_.keys, KeyState::kAbsent);
  }
  [[nodiscard]] Moved moved() const override { return {num_keys(), 0, 0, 0}; }

  std::vector<cpu_tier::Reservation> taken_;
  std::uint64_t num_writable_ = 0;
};

}  // namespace

std::unique_ptr<MetaOperation> make_store(const MetaShape& shape) {
  return std::make_unique<Store>(shape);
}

std::unique_ptr<MetaOperation> make_free_reservation(const MetaShape& shape) {
  return std::make_unique<Free>(shape);
}

}  // namespace kvferry::bench
