// SPDX-License-Identifier: Apache-2.0
#include "kvferry/connector/wire/step_report.hpp"

#include "wire.hpp"

namespace kvferry::connector {
namespace {

constexpr std::uint32_t kReportMagic = 0x4b52464b;  // "KFRK"

/// Bytes of the shortest item of each kind. A count is refused before memory is allocated for it,
/// if the rest of the message is too short for so many.
constexpr std::size_t kLeastEndBytes = 8 + 1 + 4;
constexpr std::size_t kDamagedBytes = 4 + 4;
constexpr std::size_t kLeastClassBytes = 8 + 4;
constexpr std::size_t kLeastGatheredBytes = 8 + 4;

void put(WireWriter& writer, const std::vector<TransferEnded>& ends) {
  writer.put_count(ends.size());
  for (const TransferEnded& end : ends) {
    writer.put(end.transfer);
    writer.put(static_cast<std::uint8_t>(end.outcome));
    writer.put(end.reason);
  }
}

void put(WireWriter& writer, const std::vector<DamagedSlot>& slots) {
  writer.put_count(slots.size());
  for (const DamagedSlot& one : slots) {
    writer.put(one.slab_class);
    writer.put(one.slot);
  }
}

void get(WireReader& reader, std::vector<DamagedSlot>& slots) {
  slots.resize(reader.get_count(kDamagedBytes));
  for (DamagedSlot& one : slots) {
    reader.get(one.slab_class);
    reader.get(one.slot);
  }
}

/// Writes the damaged slots by load. Most reports have none.
void put_damaged(WireWriter& writer, const std::vector<TransferEnded>& loads) {
  for (const TransferEnded& load : loads) put(writer, load.damaged);
}

void get_damaged(WireReader& reader, std::vector<TransferEnded>& loads) {
  for (TransferEnded& load : loads) {
    get(reader, load.damaged);
    if (!load.damaged.empty() && load.outcome != Outcome::kFailed) {
      reader.fail("damaged blocks of a load that has not failed");
    }
  }
}

void get(WireReader& reader, std::vector<TransferEnded>& ends) {
  ends.resize(reader.get_count(kLeastEndBytes));
  for (TransferEnded& end : ends) {
    reader.get(end.transfer);
    reader.get(end.outcome, Outcome::kCancelled);
    reader.get(end.reason);
  }
}

}  // namespace

std::string encode(const StepReport& report) {
  WireWriter writer;
  put_header(writer, kReportMagic);
  writer.put(report.domain);
  writer.put(report.rank);
  writer.put(static_cast<std::uint8_t>(report.topology.has_value()));
  if (report.topology) {
    writer.put(report.topology->world_size);
    writer.put(report.topology->num_blocks);
    writer.put_count(report.topology->classes.size());
    for (const RankSlots& of : report.topology->classes) {
      writer.put(of.slot_bytes);
      writer.put(of.slots_per_chunk);
    }
    writer.put(report.topology->num_chunks);
    writer.put(report.topology->max_chunks);
    writer.put(report.topology->ring_blocks);
    writer.put(report.topology->replicas.size);
    writer.put(report.topology->replicas.index);
    writer.put(report.topology->probe);
    writer.put(report.topology->first_chunks);
    writer.put(report.topology->chunks_per_piece);
  }
  writer.put_count(report.gathered.size());
  for (const StoreGathered& gathered : report.gathered) {
    writer.put(gathered.transfer);
    writer.put(gathered.num_gathered);
  }
  put(writer, report.stores);
  put(writer, report.loads);
  put_damaged(writer, report.loads);
  writer.put_count(report.announced.size());
  for (const TransferId transfer : report.announced) writer.put(transfer);
  writer.put_count(report.chunks.size());
  for (const ChunkEnded& ended : report.chunks) {
    put(writer, ended.order);
    writer.put(ended.failure);
  }
  put(writer, report.scrubbed);
  // 0 means nothing new, because no rank has 0 chunks.
  writer.put(report.num_ready_chunks.value_or(0));
  writer.put(report.executed);
  writer.put(report.oldest_under_way);
  return writer.take();
}

StepReport decode_report(std::span<const std::byte> bytes) {
  WireReader reader(bytes);
  check_header(reader, kReportMagic);
  StepReport report;
  std::uint8_t has_topology = 0;
  reader.get(report.domain);
  reader.get(report.rank);
  reader.get(has_topology);
  if (has_topology > 1) reader.fail("the topology flag is neither 0 nor 1");
  if (has_topology != 0) {
    RankTopology& topology = report.topology.emplace();
    reader.get(topology.world_size);
    reader.get(topology.num_blocks);
    topology.classes.resize(reader.get_count(kLeastClassBytes));
    for (RankSlots& of : topology.classes) {
      reader.get(of.slot_bytes);
      reader.get(of.slots_per_chunk);
    }
    reader.get(topology.num_chunks);
    reader.get(topology.max_chunks);
    reader.get(topology.ring_blocks);
    reader.get(topology.replicas.size);
    reader.get(topology.replicas.index);
    reader.get(topology.probe);
    reader.get(topology.first_chunks);
    reader.get(topology.chunks_per_piece);
  }
  report.gathered.resize(reader.get_count(kLeastGatheredBytes));
  for (StoreGathered& gathered : report.gathered) {
    reader.get(gathered.transfer);
    reader.get(gathered.num_gathered);
  }
  get(reader, report.stores);
  get(reader, report.loads);
  get_damaged(reader, report.loads);
  report.announced.resize(reader.get_count(sizeof(TransferId)));
  for (TransferId& transfer : report.announced) reader.get(transfer);
  report.chunks.resize(reader.get_count(kChunkOrderBytes + 4));
  for (ChunkEnded& ended : report.chunks) {
    get(reader, ended.order);
    reader.get(ended.failure);
  }
  get(reader, report.scrubbed);
  std::uint32_t num_ready_chunks = 0;
  reader.get(num_ready_chunks);
  if (num_ready_chunks != 0) report.num_ready_chunks = num_ready_chunks;
  reader.get(report.executed);
  reader.get(report.oldest_under_way);
  reader.expect_end();
  return report;
}

}  // namespace kvferry::connector
