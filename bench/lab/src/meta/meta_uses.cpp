// SPDX-License-Identifier: Apache-2.0
// The operations of `meta` that use what the tier holds, or offer it more.
#include "meta/meta_operations.hpp"

#include <array>
#include <utility>

namespace kvferry::bench {
namespace {

using cpu_tier::BlockKey;
using cpu_tier::KeyState;
using cpu_tier::OfferAnswer;
using Nanoseconds = std::chrono::nanoseconds;

/// Takes leases on readable blocks by key, and ends them.
class LeaseAndRelease final : public MetaOperation {
 public:
  explicit LeaseAndRelease(const MetaShape& shape) : MetaOperation(shape) {}
  [[nodiscard]] std::span<const MetaPart> parts() const override {
    static constexpr std::array<MetaPart, 2> kParts = {{{"lease", true}, {"release"}}};
    return kParts;
  }
  [[nodiscard]] std::vector<Nanoseconds> run() override {
    leases_.clear();
    leases_.reserve(num_keys() / batch_);
    const Nanoseconds leased = time_calls([this](std::size_t, std::span<const BlockKey> keys) {
      leases_.push_back(std::move(rig_.tier().lease(MetaRig::kOnly, keys)).value());
    });
    num_leased_ = rig_.tier().snapshot().num_leased;
    num_right_keys_ = 0;
    for (std::size_t i = 0; i < leases_.size(); ++i) {
      const BlockKey held = rig_.tier().key(MetaRig::kOnly, leases_[i].slots().front());
      num_right_keys_ += held == blocks_.keys[i * batch_] ? 1 : 0;
    }
    return {leased, time_calls([this](std::size_t first, std::span<const BlockKey>) {
              rig_.tier().release(std::move(leases_[first / batch_]));
            })};
  }

 private:
  [[nodiscard]] MetaKeys choose() override { return rig_.draw_resident(); }
  void check_answers(AnswerSheet& sheet) override {
    sheet.expect(num_leased_, num_keys());
    sheet.expect(num_right_keys_, leases_.size());
    expect_states(sheet, blocks_.keys, KeyState::kReadable);
    expect_values(sheet, Holds::kAll);
  }

  std::vector<cpu_tier::Lease> leases_;
  std::uint64_t num_leased_ = 0;
  std::uint64_t num_right_keys_ = 0;
};

/// Makes readable blocks the most recent ones.
class Touch final : public MetaOperation {
 public:
  explicit Touch(const MetaShape& shape) : MetaOperation(shape) {}
  [[nodiscard]] std::span<const MetaPart> parts() const override {
    static constexpr std::array<MetaPart, 1> kParts = {{{"touch", true}}};
    return kParts;
  }
  [[nodiscard]] std::vector<Nanoseconds> run() override {
    return {time_calls([this](std::size_t, std::span<const BlockKey> keys) {
      rig_.tier().touch(MetaRig::kOnly, keys);
    })};
  }

 private:
  [[nodiscard]] MetaKeys choose() override { return rig_.draw_resident(); }
  void check_answers(AnswerSheet& sheet) override {
    expect_states(sheet, blocks_.keys, KeyState::kReadable);
    expect_values(sheet, Holds::kAll);
  }
};

/// Offers the blocks of a request to a full tier.
class Offer final : public MetaOperation {
 public:
  Offer(const MetaShape& shape, Holds holds) : MetaOperation(shape), holds_(holds) {}
  [[nodiscard]] std::span<const MetaPart> parts() const override {
    static constexpr std::array<MetaPart, 2> kParts = {
        {{"offer, absent", true}, {"offer, held", true}}};
    return std::span(kParts).subspan(holds_ == Holds::kAll ? 1 : 0, 1);
  }
  [[nodiscard]] std::vector<Nanoseconds> run() override {
    answers_.assign(num_keys(), OfferAnswer::kDeclined);
    return {time_calls([this](std::size_t first, std::span<const BlockKey> keys) {
      rig_.tier().offer(MetaRig::kOnly, keys, std::span(answers_).subspan(first, keys.size()));
    })};
  }

 private:
  [[nodiscard]] MetaKeys choose() override {
    return holds_ == Holds::kAll ? rig_.draw_resident() : rig_.draw_new();
  }
  void check_answers(AnswerSheet& sheet) override {
    for (const OfferAnswer answer : answers_) {
      sheet.expect(answer == OfferAnswer::kHeld ? 1 : 0, holds_ == Holds::kAll ? 1 : 0);
    }
    expect_values(sheet, holds_);
  }
  [[nodiscard]] Moved moved() const override {
    return {0, 0, 0, holds_ == Holds::kAll ? 0 : num_keys()};
  }

  const Holds holds_;
  std::vector<OfferAnswer> answers_;
};

}  // namespace

std::unique_ptr<MetaOperation> make_lease(const MetaShape& shape) {
  return std::make_unique<LeaseAndRelease>(shape);
}

std::unique_ptr<MetaOperation> make_touch(const MetaShape& shape) {
  return std::make_unique<Touch>(shape);
}

std::unique_ptr<MetaOperation> make_offer(const MetaShape& shape, Holds holds) {
  return std::make_unique<Offer>(shape, holds);
}

}  // namespace kvferry::bench
