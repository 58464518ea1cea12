// SPDX-License-Identifier: Apache-2.0
#include "kvferry/connector/step_plan.hpp"

#include "wire.hpp"

namespace kvferry::connector {
namespace {

constexpr std::uint32_t kPlanMagic = 0x4c50464b;  // "KFPL"

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
    writer.put(order.group);
    writer.put(static_cast<std::uint8_t>(order.readiness));
    writer.put(std::span<const BlockSlot>(order.blocks));
  }
  writer.put_count(plan.loads.size());
  for (const LoadOrder& order : plan.loads) {
    writer.put(order.transfer);
    put(writer, order.owner);
    writer.put(order.engine_request_id);
    writer.put(static_cast<std::uint8_t>(order.doomed));
    writer.put(order.group);
    writer.put(std::span<const BlockSlot>(order.blocks));
  }
  writer.put_count(plan.cancels.size());
  for (const CancelOrder& order : plan.cancels) {
    writer.put(order.transfer);
    writer.put(static_cast<std::uint8_t>(order.kind));
  }
  return writer.take();
}

StepPlan decode_plan(std::span<const std::byte> bytes) {
  WireReader reader(bytes);
  check_header(reader, kPlanMagic);
  StepPlan plan;
  reader.get(plan.domain);
  reader.get(plan.seq);
  plan.stores.resize(reader.get_count(1));
  for (StoreOrder& order : plan.stores) {
    reader.get(order.transfer);
    get(reader, order.owner);
    reader.get(order.group);
    reader.get(order.readiness, StoreReadiness::kAfterForward);
    reader.get(order.blocks);
  }
  plan.loads.resize(reader.get_count(1));
  for (LoadOrder& order : plan.loads) {
    std::uint8_t doomed = 0;
    reader.get(order.transfer);
    get(reader, order.owner);
    reader.get(order.engine_request_id);
    reader.get(doomed);
    order.doomed = doomed != 0;
    reader.get(order.group);
    reader.get(order.blocks);
  }
  plan.cancels.resize(reader.get_count(1));
  for (CancelOrder& order : plan.cancels) {
    reader.get(order.transfer);
    reader.get(order.kind, CancelKind::kDoom);
  }
  reader.expect_end();
  return plan;
}

}  // namespace kvferry::connector
