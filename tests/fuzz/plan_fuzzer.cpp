// SPDX-License-Identifier: Apache-2.0
// Any bytes for a StepPlan, on a real rank. The first byte says what is done around them.
#include "kvferry/base/error.hpp"

#include "plan_life.hpp"
#include "plan_mutator.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using kvferry::fuzz::PlanLife;
  static PlanLife life;
  if (size == 0) return 0;
  const PlanLife::Way way{.as_it_is = (data[0] & 0x1f) == 0x1f,
                          .twice = (data[0] & 0x20) != 0,
                          .unsaved = (data[0] & 0x40) != 0,
                          .cancelled = (data[0] & 0x80) != 0};
  life.take(way, std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned int seed) {
  namespace connector = kvferry::connector;
  std::mt19937_64 random(seed);
  if (random() % 5 == 0 || max_size < 2) return LLVMFuzzerMutate(data, size, max_size);
  connector::StepPlan plan;
  if (size > 1) {
    try {
      plan = connector::decode_plan(std::as_bytes(std::span(data + 1, size - 1)));
    } catch (const kvferry::ProtocolError&) {
      // The next one begins with an empty plan.
    }
  }
  for (std::uint64_t i = 1 + random() % 4; i > 0; --i) kvferry::fuzz::mutate(plan, random);
  const std::string message = encode(plan);
  if (message.size() + 1 > max_size) return LLVMFuzzerMutate(data, size, max_size);
  if (size == 0 || random() % 4 == 0) data[0] = static_cast<std::uint8_t>(random());
  std::memcpy(data + 1, message.data(), message.size());
  return message.size() + 1;
}
