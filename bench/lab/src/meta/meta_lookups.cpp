// SPDX-License-Identifier: Apache-2.0
// The operations of `meta` that ask what the tier holds.
#include "meta/meta_operations.hpp"

#include <array>

namespace kvferry::bench {
namespace {

using cpu_tier::BlockKey;
using cpu_tier::KeyState;
using Nanoseconds = std::chrono::nanoseconds;

// The warm and the cold goal are for the half million blocks that a terabyte of host memory holds.
// A request of 128k tokens is 8,192 blocks, whose lookup should cost the scheduler a quarter of a
// millisecond (warm) or half a millisecond (cold). The third goal is for twenty times as many
// blocks.
constexpr double kWarmGoal = 30;
constexpr double kColdGoal = 60;
constexpr double kManyGoal = 100;

/// Looks up the state of each key.
class Lookup final : public MetaOperation {
 public:
  Lookup(const MetaShape& shape, Holds holds) : MetaOperation(shape), holds_(holds) {}
  [[nodiscard]] std::span<const MetaPart> parts() const override {
    static constexpr std::array<MetaPart, 2> kParts = {
        {{"lookup, absent", true, kWarmGoal, kColdGoal, kManyGoal},
         {"lookup", true, kWarmGoal, kColdGoal, kManyGoal}}};
    return std::span(kParts).subspan(holds_ == Holds::kAll ? 1 : 0, 1);
  }
  [[nodiscard]] std::vector<Nanoseconds> run() override {
    states_.assign(num_keys(), KeyState::kWritable);
    return {time_calls([this](std::size_t first, std::span<const BlockKey> keys) {
      rig_.tier().lookup(MetaRig::kOnly, keys, std::span(states_).subspan(first, keys.size()));
    })};
  }

 private:
  [[nodiscard]] MetaKeys choose() override {
    return holds_ == Holds::kAll ? rig_.draw_resident() : rig_.draw_new();
  }
  void check_answers(AnswerSheet& sheet) override {
    const KeyState expected = holds_ == Holds::kAll ? KeyState::kReadable : KeyState::kAbsent;
    for (const KeyState state : states_) {
      sheet.expect(static_cast<std::uint64_t>(state), static_cast<std::uint64_t>(expected));
    }
    expect_values(sheet, holds_);
  }

  const Holds holds_;
  std::vector<KeyState> states_;
};

/// Looks up the longest readable prefix, as a scheduler does.
class Prefix final : public MetaOperation {
 public:
  explicit Prefix(const MetaShape& shape) : MetaOperation(shape) {}
  [[nodiscard]] std::span<const MetaPart> parts() const override {
    static constexpr std::array<MetaPart, 1> kParts = {
        {{"lookup_prefix", true, kWarmGoal, kColdGoal, kManyGoal}}};
    return kParts;
  }
  [[nodiscard]] std::vector<Nanoseconds> run() override {
    hits_.clear();
    hits_.reserve(num_keys() / batch_);
    return {time_calls([this](std::size_t, std::span<const BlockKey> keys) {
      hits_.push_back(rig_.tier().lookup_prefix(MetaRig::kOnly, keys));
    })};
  }

 private:
  [[nodiscard]] MetaKeys choose() override { return rig_.draw_resident(); }
  void check_answers(AnswerSheet& sheet) override {
    for (const auto& hit : hits_) sheet.expect(hit.size(), batch_);
    expect_values(sheet, Holds::kAll);
  }

  std::vector<cpu_tier::PrefixHit> hits_;
};

}  // namespace

std::unique_ptr<MetaOperation> make_lookup(const MetaShape& shape, Holds holds) {
  return std::make_unique<Lookup>(shape, holds);
}

std::unique_ptr<MetaOperation> make_prefix_lookup(const MetaShape& shape) {
  return std::make_unique<Prefix>(shape);
}

}  // namespace kvferry::bench
