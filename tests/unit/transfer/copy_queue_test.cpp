// SPDX-License-Identifier: Apache-2.0
#include "copy_queue.hpp"

#include <gtest/gtest.h>

#include <utility>

namespace kvferry::transfer {
namespace {

Piece make_piece(TransferKind kind, std::uint64_t transfer, std::uint64_t bytes) {
  Piece piece;
  piece.kind = kind;
  piece.transfer = TransferId(transfer);
  piece.bytes = bytes;
  return piece;
}

std::uint64_t taken_transfer(CopyQueue& queue) {
  const std::optional<Piece> piece = queue.take({});
  return piece ? piece->transfer.value() : 0;
}

TEST(CopyQueueTest, TakesLoadsBeforeStoresAndEachInOrder) {
  CopyQueue queue(1000, 0);
  queue.push(make_piece(TransferKind::kStore, 1, 10));
  queue.push(make_piece(TransferKind::kStore, 2, 10));
  queue.push(make_piece(TransferKind::kLoad, 3, 10));
  queue.push(make_piece(TransferKind::kLoad, 4, 10));
  EXPECT_EQ(queue.queued_bytes(), 40U);
  for (const std::uint64_t expected : {3U, 4U, 1U, 2U, 0U}) {
    EXPECT_EQ(taken_transfer(queue), expected);
  }
  EXPECT_EQ(queue.queued_bytes(), 0U);
  EXPECT_EQ(queue.in_flight_bytes(), 40U);
}

TEST(CopyQueueTest, BoundsTheBytesInFlightPerDirection) {
  CopyQueue queue(25, 0);
  for (std::uint64_t i = 1; i <= 3; ++i) queue.push(make_piece(TransferKind::kStore, i, 10));
  queue.push(make_piece(TransferKind::kLoad, 9, 20));
  EXPECT_EQ(taken_transfer(queue), 9U);
  EXPECT_EQ(taken_transfer(queue), 1U);
  EXPECT_EQ(taken_transfer(queue), 2U);
  EXPECT_EQ(taken_transfer(queue), 0U) << "30 bytes would be in flight";
  queue.finish(make_piece(TransferKind::kLoad, 9, 20));
  EXPECT_EQ(taken_transfer(queue), 0U) << "the other direction's room is not theirs";
  queue.finish(make_piece(TransferKind::kStore, 1, 10));
  EXPECT_EQ(taken_transfer(queue), 3U);
}

TEST(CopyQueueTest, LetsOnePieceThroughThatIsLargerThanTheBound) {
  CopyQueue queue(0, 0);
  queue.push(make_piece(TransferKind::kStore, 1, 10));
  queue.push(make_piece(TransferKind::kStore, 2, 10));
  EXPECT_EQ(taken_transfer(queue), 1U);
  EXPECT_EQ(taken_transfer(queue), 0U);
  queue.finish(make_piece(TransferKind::kStore, 1, 10));
  EXPECT_EQ(taken_transfer(queue), 2U);
}

TEST(CopyQueueTest, RemovesOneTransferAndKeepsTheOrderOfTheOthers) {
  CopyQueue queue(1000, 0);
  for (const std::uint64_t id : {1U, 2U, 1U, 3U}) {
    queue.push(make_piece(TransferKind::kStore, id, 10));
  }
  EXPECT_EQ(queue.remove(TransferKind::kStore, TransferId(1)).size(), 2U);
  EXPECT_EQ(queue.queued_bytes(), 20U);
  EXPECT_EQ(taken_transfer(queue), 2U);
  EXPECT_EQ(taken_transfer(queue), 3U);
}

}  // namespace
}  // namespace kvferry::transfer
