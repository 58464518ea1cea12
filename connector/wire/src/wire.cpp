// SPDX-License-Identifier: Apache-2.0
#include "wire.hpp"

#include "kvferry/connector/wire/step_plan.hpp"

namespace kvferry::connector {

void put(WireWriter& writer, const ChunkOrder& order) {
  writer.put(order.first);
  writer.put(order.count);
  writer.put(static_cast<std::uint8_t>(order.change));
}

void get(WireReader& reader, ChunkOrder& order) {
  reader.get(order.first);
  reader.get(order.count);
  reader.get(order.change, ChunkChange::kRestore);
}

void put_header(WireWriter& writer, std::uint32_t magic) {
  writer.put(magic);
  writer.put(kWireVersion);
}

void check_header(WireReader& reader, std::uint32_t magic) {
  std::uint32_t met_magic = 0;
  std::uint16_t met_version = 0;
  reader.get(met_magic);
  if (met_magic != magic) reader.fail("not a kvferry message of the expected kind");
  reader.get(met_version);
  if (met_version != kWireVersion) {
    reader.fail("message version " + std::to_string(met_version) + ", this side speaks " +
                std::to_string(kWireVersion));
  }
}

}  // namespace kvferry::connector
