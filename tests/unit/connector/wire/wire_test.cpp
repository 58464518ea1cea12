// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"
#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/connector/wire/step_report.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>

namespace kvferry::connector {
namespace {

StepPlan some_plan() {
  const Owner owner{DomainId(1), RequestId(2), Generation(3)};
  StepPlan plan;
  plan.domain = DomainId(9);
  plan.seq = PlanSeq(0x1122334455667788U);
  plan.stores.push_back({TransferId(4), owner, SlabClassId(0), StoreReadiness::kNow, {}});
  plan.stores.push_back(
      {TransferId(5),
       owner,
       SlabClassId(1),
       StoreReadiness::kAfterForward,
       {{BlockId(6), SlotId(7), 0x1122334455667788U}, {BlockId(8), SlotId(0xffffffffU), 9}}});
  plan.loads.push_back(
      {TransferId(10),
       owner,
       {{SlabClassId(0), {{BlockId(11), SlotId(12), 0xffeeddccbbaa9988U}}},
        {SlabClassId(2), {{BlockId(18), SlotId(19)}, {BlockId(20), SlotId(21)}}}}});
  plan.loads.push_back({TransferId(13), owner, {}});
  plan.cancels = {TransferId(14), TransferId(15)};
  plan.expiries = {TransferId(18), TransferId(19), TransferId(20)};
  plan.chunks = {{ChunkId(25), 26, ChunkChange::kRestore}, {ChunkId(27), 28}};
  plan.notices = {{TransferId(16), "request-1"}, {TransferId(17), std::string("\0\xff", 2)}};
  return plan;
}

StepReport some_report() {
  StepReport report;
  report.domain = DomainId(9);
  report.rank = RankId(3);
  report.topology = RankTopology{
      4, 5, {{0x1122334455667788U, 19}, {20, 21}}, 6, 25, 7, {22, 23}, 0x99aabbccddeeff00U, 24, 3};
  report.gathered = {{TransferId(8), 9}, {TransferId(10), 0}};
  report.stores = {{TransferId(11), Outcome::kDone, ""}};
  report.loads = {{TransferId(12), Outcome::kFailed, "copy: no link"},
                  {TransferId(29),
                   Outcome::kFailed,
                   "2 blocks are damaged",
                   {{SlabClassId(30), SlotId(31)}, {SlabClassId(0), SlotId(0xffffffffU)}}},
                  {TransferId(13), Outcome::kCancelled, ""}};
  report.announced = {TransferId(16), TransferId(17)};
  report.chunks = {{{ChunkId(25), 26, ChunkChange::kRestore}, "no memory"},
                   {{ChunkId(27), 28}, ""}};
  report.scrubbed = {{SlabClassId(32), SlotId(33)}, {SlabClassId(34), SlotId(35)}};
  report.num_ready_chunks = 18;
  report.executed = PlanSeq(0x2122334455667788U);
  report.oldest_under_way = TransferId(24);
  return report;
}

/// One kind of message, as the tests below see both.
struct Message {
  const char* name;
  std::string bytes;
  std::function<std::string(std::span<const std::byte>)> recode;  ///< decode, then encode.
};

class WireTest : public ::testing::TestWithParam<Message> {
 protected:
  /// Decodes a copy in memory of exactly its size, so that the sanitizers see a read beyond it.
  static std::string recode(std::string_view bytes) {
    const auto exact = std::make_unique<std::byte[]>(bytes.size());
    std::memcpy(exact.get(), bytes.data(), bytes.size());
    return GetParam().recode({exact.get(), bytes.size()});
  }
  static std::string complaint(std::string_view bytes) {
    try {
      static_cast<void>(recode(bytes));
    } catch (const ProtocolError& error) {
      return error.what();
    }
    ADD_FAILURE() << "no ProtocolError";
    return {};
  }
  const std::string& bytes_ = GetParam().bytes;
};

TEST_P(WireTest, ComesBackAsItWentOut) { EXPECT_EQ(recode(bytes_), bytes_); }

TEST_P(WireTest, EveryTruncationIsAProtocolError) {
  for (std::size_t size = 0; size < bytes_.size(); ++size) {
    EXPECT_THROW(static_cast<void>(recode(std::string_view(bytes_).substr(0, size))), ProtocolError)
        << size << " of " << bytes_.size() << " bytes";
  }
}

TEST_P(WireTest, TrailingBytesAreAProtocolError) {
  EXPECT_NE(complaint(bytes_ + '\0').find("trailing"), std::string::npos);
}

// The fuzzers try all values.
TEST_P(WireTest, EverySingleByteChangeIsAProtocolErrorOrAMessage) {
  for (std::size_t at = 0; at < bytes_.size(); ++at) {
    const auto is = static_cast<unsigned char>(bytes_[at]);
    for (const int value : {0, 1, 2, 3, 4, 8, 16, 32, 64, 127, 128, 255, is ^ 1, is + 1, is - 1}) {
      std::string spoilt = bytes_;
      spoilt[at] = static_cast<char>(value);
      try {
        const std::string again = recode(spoilt);
        EXPECT_EQ(recode(again), again);
      } catch (const ProtocolError&) {
      }
    }
  }
}

TEST_P(WireTest, RandomDamageIsAProtocolErrorOrAMessage) {
  std::mt19937 random(2);
  for (int round = 0; round < 20'000; ++round) {
    std::string spoilt =
        bytes_.substr(0, random() % 8 == 0 ? random() % bytes_.size() : std::string::npos);
    for (unsigned flips = 1 + random() % 6; flips > 0 && !spoilt.empty(); --flips) {
      spoilt[random() % spoilt.size()] ^= static_cast<char>(1U << (random() % 8));
    }
    try {
      static_cast<void>(recode(spoilt));
    } catch (const ProtocolError&) {
    }
  }
}

TEST_P(WireTest, AnotherKindOfMessageIsRefused) {
  std::string spoilt = bytes_;
  spoilt[0] ^= 1;
  EXPECT_NE(complaint(spoilt).find("not a kvferry message of the expected kind"),
            std::string::npos);
}

TEST_P(WireTest, AnotherVersionIsNamedWithOurs) {
  std::string spoilt = bytes_;
  spoilt[4] = 42;
  const std::string message = complaint(spoilt);
  EXPECT_NE(message.find("version 42"), std::string::npos) << message;
  EXPECT_NE(message.find("speaks " + std::to_string(kWireVersion)), std::string::npos) << message;
}

// A count is refused before anything is allocated for it: 2^32 - 1 orders would take hundreds of
// GiB.
TEST_P(WireTest, NoCountMakesItReadOrAllocateBeyondTheMessage) {
  for (std::size_t at = 6; at + 4 <= bytes_.size(); ++at) {
    std::string spoilt = bytes_;
    std::memset(spoilt.data() + at, 0xff, 4);
    try {
      static_cast<void>(recode(spoilt));
    } catch (const ProtocolError&) {
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Messages, WireTest,
    ::testing::Values(
        Message{"Plan", encode(some_plan()),
                [](std::span<const std::byte> b) { return encode(decode_plan(b)); }},
        Message{"EmptyPlan", encode(StepPlan{}),
                [](std::span<const std::byte> b) { return encode(decode_plan(b)); }},
        Message{"Report", encode(some_report()),
                [](std::span<const std::byte> b) { return encode(decode_report(b)); }},
        Message{"EmptyReport", encode(StepReport{}),
                [](std::span<const std::byte> b) { return encode(decode_report(b)); }}),
    [](const auto& message) { return std::string(message.param.name); });

TEST(StepPlan, EveryFieldArrives) {
  const StepPlan sent = some_plan();
  const std::string bytes = encode(sent);
  const StepPlan plan = decode_plan(std::as_bytes(std::span(bytes)));
  EXPECT_EQ(plan.domain, sent.domain);
  EXPECT_EQ(plan.seq, sent.seq);
  ASSERT_EQ(plan.stores.size(), 2U);
  EXPECT_EQ(plan.stores[0].readiness, StoreReadiness::kNow);
  EXPECT_EQ(plan.stores[1].transfer, TransferId(5));
  EXPECT_EQ(plan.stores[1].owner, sent.stores[1].owner);
  EXPECT_EQ(plan.stores[1].slab_class, SlabClassId(1));
  EXPECT_EQ(plan.stores[1].readiness, StoreReadiness::kAfterForward);
  EXPECT_EQ(plan.stores[1].blocks, sent.stores[1].blocks);
  ASSERT_EQ(plan.loads.size(), 2U);
  EXPECT_EQ(plan.loads[0].transfer, TransferId(10));
  EXPECT_EQ(plan.loads[0].owner, sent.loads[0].owner);
  ASSERT_EQ(plan.loads[0].parts.size(), 2U);
  EXPECT_EQ(plan.loads[0].parts[0].slab_class, SlabClassId(0));
  EXPECT_EQ(plan.loads[0].parts[0].blocks, sent.loads[0].parts[0].blocks);
  EXPECT_EQ(plan.loads[0].parts[1].slab_class, SlabClassId(2));
  EXPECT_EQ(plan.loads[0].parts[1].blocks, sent.loads[0].parts[1].blocks);
  EXPECT_EQ(plan.loads[1].transfer, TransferId(13));
  EXPECT_TRUE(plan.loads[1].parts.empty());
  EXPECT_EQ(plan.cancels, sent.cancels);
  EXPECT_EQ(plan.expiries, sent.expiries);
  ASSERT_EQ(plan.notices.size(), 2U);
  EXPECT_EQ(plan.notices[0].transfer, TransferId(16));
  EXPECT_EQ(plan.notices[0].engine_request_id, "request-1");
  EXPECT_EQ(plan.notices[1].engine_request_id, sent.notices[1].engine_request_id);
  EXPECT_FALSE(plan.empty());
}

TEST(StepPlan, IsEmptyOnlyWithoutAnythingToDo) {
  const auto with = [](auto add) {
    StepPlan plan;
    add(plan);
    return plan.empty();
  };
  EXPECT_TRUE(with([](StepPlan& plan) { plan.seq = PlanSeq(3); }));
  EXPECT_FALSE(with([](StepPlan& plan) { plan.stores.emplace_back(); }));
  EXPECT_FALSE(with([](StepPlan& plan) { plan.loads.emplace_back(); }));
  EXPECT_FALSE(with([](StepPlan& plan) { plan.cancels.emplace_back(); }));
  EXPECT_FALSE(with([](StepPlan& plan) { plan.expiries.emplace_back(); }));
  EXPECT_FALSE(with([](StepPlan& plan) { plan.notices.emplace_back(); }));
}

TEST(StepReport, OnlyALoadThatHasFailedHasDamagedBlocks) {
  for (const Outcome outcome : {Outcome::kDone, Outcome::kCancelled}) {
    StepReport report;
    report.loads = {{TransferId(1), outcome, "", {{SlabClassId(0), SlotId(2)}}}};
    const std::string bytes = encode(report);
    EXPECT_THROW(static_cast<void>(decode_report(std::as_bytes(std::span(bytes)))), ProtocolError);
  }
}

TEST(StepReport, EveryFieldArrives) {
  const std::string bytes = encode(some_report());
  const StepReport report = decode_report(std::as_bytes(std::span(bytes)));
  EXPECT_EQ(report.domain, DomainId(9));
  EXPECT_EQ(report.rank, RankId(3));
  ASSERT_TRUE(report.topology);
  EXPECT_EQ(report.topology->world_size, 4U);
  EXPECT_EQ(report.topology->num_blocks, 5U);
  ASSERT_EQ(report.topology->classes.size(), 2U);
  EXPECT_EQ(report.topology->classes[0].slot_bytes, 0x1122334455667788U);
  EXPECT_EQ(report.topology->classes[0].slots_per_chunk, 19U);
  EXPECT_EQ(report.topology->classes[1].slot_bytes, 20U);
  EXPECT_EQ(report.topology->classes[1].slots_per_chunk, 21U);
  EXPECT_EQ(report.topology->num_chunks, 6U);
  EXPECT_EQ(report.topology->max_chunks, 25U);
  EXPECT_EQ(report.topology->ring_blocks, 7U);
  EXPECT_EQ(report.topology->probe, 0x99aabbccddeeff00U);
  ASSERT_EQ(report.gathered.size(), 2U);
  EXPECT_EQ(report.gathered[0].num_gathered, 9U);
  ASSERT_EQ(report.stores.size(), 1U);
  EXPECT_EQ(report.stores[0].transfer, TransferId(11));
  ASSERT_EQ(report.loads.size(), 3U);
  EXPECT_EQ(report.loads[0].outcome, Outcome::kFailed);
  EXPECT_EQ(report.loads[0].reason, "copy: no link");
  EXPECT_TRUE(report.loads[0].damaged.empty());
  EXPECT_EQ(report.num_ready_chunks, 18U);
  EXPECT_EQ(report.loads[1].damaged, some_report().loads[1].damaged);
  EXPECT_EQ(report.scrubbed, some_report().scrubbed);
  EXPECT_EQ(report.loads[2].outcome, Outcome::kCancelled);
  EXPECT_EQ(report.announced, (std::vector<TransferId>{TransferId(16), TransferId(17)}));
  EXPECT_EQ(report.executed, PlanSeq(0x2122334455667788U));
  EXPECT_EQ(report.oldest_under_way, TransferId(24));
  EXPECT_FALSE(report.empty());
  EXPECT_TRUE(StepReport{}.empty());
  StepReport announcing;
  announcing.announced = {TransferId(1)};
  EXPECT_FALSE(announcing.empty()) << "an empty report is never sent";
  StepReport busy;
  busy.oldest_under_way = TransferId(1);
  EXPECT_FALSE(busy.empty()) << "a rank that has something under way says so";
  StepReport idle;
  idle.executed = PlanSeq(3);
  EXPECT_TRUE(idle.empty());
}

}  // namespace
}  // namespace kvferry::connector
