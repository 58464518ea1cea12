// SPDX-License-Identifier: Apache-2.0
// Any bytes for StepReports, folded into a real scheduler side. The first byte says how far that
// is; then come the messages of one fold after the other, each behind a byte that ends the fold or
// does not, and two bytes of its length.
#include "kvferry/base/error.hpp"

#include "report_life.hpp"
#include "report_mutator.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace kvferry::fuzz {
namespace {

struct Message {
  bool ends_fold = false;
  std::string bytes;
};

constexpr std::size_t kMostMessages = 6;

std::vector<Message> messages_in(std::span<const std::uint8_t> data) {
  std::vector<Message> messages;
  while (data.size() > 3 && messages.size() < kMostMessages) {
    const std::size_t length = std::min<std::size_t>(data[1] | data[2] << 8U, data.size() - 3);
    messages.push_back(
        {(data[0] & 1U) != 0, {reinterpret_cast<const char*>(data.data()) + 3, length}});
    data = data.subspan(3 + length);
  }
  return messages;
}

std::string text_of(std::uint8_t stage, const std::vector<Message>& messages) {
  std::string text(1, static_cast<char>(stage));
  for (const Message& message : messages) {
    text += static_cast<char>(message.ends_fold ? 1 : 0);
    text += static_cast<char>(message.bytes.size() & 0xffU);
    text += static_cast<char>(message.bytes.size() >> 8U);
    text += message.bytes;
  }
  return text;
}

void change_one(std::vector<Message>& messages, std::mt19937_64& random) {
  if (messages.empty() || (random() % 4 == 0 && messages.size() < kMostMessages)) {
    messages.push_back({random() % 2 == 0, {}});
  }
  Message& message = messages[random() % messages.size()];
  connector::StepReport report;
  try {
    report = connector::decode_report(std::as_bytes(std::span(message.bytes)));
  } catch (const ProtocolError&) {
    // The next one begins with an empty report.
  }
  for (std::uint64_t i = 1 + random() % 4; i > 0; --i) mutate(report, random);
  message.bytes = encode(report);
}

}  // namespace
}  // namespace kvferry::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvferry::fuzz;  // NOLINT(google-build-using-namespace): the program's own.
  if (size == 0) return 0;
  ReportLife life(static_cast<ReportLife::Stage>(data[0] % ReportLife::kNumStages));
  std::vector<std::string> fold;
  for (Message& message : messages_in({data + 1, size - 1})) {
    fold.push_back(std::move(message.bytes));
    if (!message.ends_fold) continue;
    life.take(fold);
    fold.clear();
  }
  life.take(fold);
  life.expect_all_ends();
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned int seed) {
  using namespace kvferry::fuzz;  // NOLINT(google-build-using-namespace): the program's own.
  std::mt19937_64 random(seed);
  if (random() % 5 == 0) return LLVMFuzzerMutate(data, size, max_size);
  std::vector<Message> messages;
  if (size > 1) messages = messages_in({data + 1, size - 1});
  change_one(messages, random);
  const auto stage = static_cast<std::uint8_t>(size == 0 || random() % 8 == 0 ? random() : data[0]);
  const std::string text = text_of(stage, messages);
  if (text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}
