// SPDX-License-Identifier: Apache-2.0
#include "kvferry/connector/wire/step_plan.hpp"

#include "wire.hpp"

namespace kvferry::connector {
namespace {

constexpr std::uint32_t kPlanMagic = 0x4c50464b;  // "KFPL"

/// Bytes of the shortest order, part and notice. A count is refused before memory is allocated for
/// it, if the rest of the message is too short for so many.
constexpr std::size_t kOwnerBytes = 4 + 8 + 8;
constexpr std::size_t kLeastStoreBytes = 8 + kOwnerBytes + 4 + 1 + 4;
constexpr std::size_t kLeastLoadBytes = 8 + kOwnerBytes + 4;
constexpr std::size_t kLeastPartBytes = 4 + 4;
constexpr std::size_t kLeastNoticeBytes = 8 + 4;

void put(WireWriter& writer, const Owner& owner) {
  writer.put(owner.domain);
  writer.put(owner.request);
  writer.put(owner.generation);
}

void get(WireReader& reader, Owner& owner) {
  reader.get(owner.domain);
  reader.get(owner.request);
  reader.get(owner.generation);
}

}  // namespace

std::string encode(const StepPlan& plan) {
  WireWriter writer;
  put_header(writer, kPlanMagic);
  writer.put(plan.domain);
  writer.put(plan.seq);
  writer.put_count(plan.stores.size());
  for (const StoreOrder& order : plan.stores) {
    writer.put(order.transfer);
    put(writer, order.owner);
    writer.put(order.slab_class);
    writer.put(static_cast<std::uint8_t>(order.readiness));
    writer.put(std::span<const BlockSlot>(order.blocks));
  }
  writer.put_count(plan.loads.size());
  for (const LoadOrder& order : plan.loads) {
    writer.put(order.transfer);
    put(writer, order.owner);
    writer.put_count(order.parts.size());
    for (const ClassBlocks& part : order.parts) {
      writer.put(part.slab_class);
      writer.put(std::span<const BlockSlot>(part.blocks));
    }
  }
  writer.put_count(plan.cancels.size());
  for (const TransferId transfer : plan.cancels) writer.put(transfer);
  writer.put_count(plan.expiries.size());
  for (const TransferId transfer : plan.expiries) writer.put(transfer);
  writer.put_count(plan.notices.size());
  for (const FailureNotice& notice : plan.notices) {
    writer.put(notice.transfer);
    writer.put(notice.engine_request_id);
  }
  writer.put_count(plan.chunks.size());
  for (const ChunkOrder& order : plan.chunks) put(writer, order);
  return writer.take();
}

StepPlan decode_plan(std::span<const std::byte> bytes) {
  WireReader reader(bytes);
  check_header(reader, kPlanMagic);
  StepPlan plan;
  reader.get(plan.domain);
  reader.get(plan.seq);
  plan.stores.resize(reader.get_count(kLeastStoreBytes));
  for (StoreOrder& order : plan.stores) {
    reader.get(order.transfer);
    get(reader, order.owner);
    reader.get(order.slab_class);
    reader.get(order.readiness, StoreReadiness::kAfterForward);
    reader.get(order.blocks);
  }
  plan.loads.resize(reader.get_count(kLeastLoadBytes));
  for (LoadOrder& order : plan.loads) {
    reader.get(order.transfer);
    get(reader, order.owner);
    order.parts.resize(reader.get_count(kLeastPartBytes));
    for (ClassBlocks& part : order.parts) {
      reader.get(part.slab_class);
      reader.get(part.blocks);
    }
  }
  plan.cancels.resize(reader.get_count(sizeof(TransferId)));
  for (TransferId& transfer : plan.cancels) reader.get(transfer);
  plan.expiries.resize(reader.get_count(sizeof(TransferId)));
  for (TransferId& transfer : plan.expiries) reader.get(transfer);
  plan.notices.resize(reader.get_count(kLeastNoticeBytes));
  for (FailureNotice& notice : plan.notices) {
    reader.get(notice.transfer);
    reader.get(notice.engine_request_id);
  }
  plan.chunks.resize(reader.get_count(kChunkOrderBytes));
  for (ChunkOrder& order : plan.chunks) get(reader, order);
  reader.expect_end();
  return plan;
}

}  // namespace kvferry::connector
