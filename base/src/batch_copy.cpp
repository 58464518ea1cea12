// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/batch_copy.hpp"

#include "kvferry/base/streaming_copy.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace kvferry {
namespace {

/// Parts become smaller towards the end, when whoever has no more to do waits for the others: this
/// much takes 3 us. Large ones first, because a processor reads ahead of a part's end for nothing.
constexpr std::uint64_t kLeastPart = std::uint64_t{32} << 10U;
constexpr std::uint64_t kMostPart = std::uint64_t{1} << 20U;

std::byte* at(std::uintptr_t address) {
  return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
}

/// Asks for what is copied behind `last`, where it lies elsewhere. The processor itself looks ahead
/// only along what is read already, so that small fragments in many places wait for memory each
/// time; and for their pages, on both sides: a line that is asked for brings its page's address.
void ask_for(const CopyRun& run, const CopyRun& last) {
  constexpr std::uint64_t kLine = 64;
  constexpr std::uint64_t kLines = 8;
  if (run.destination != last.destination + last.bytes) __builtin_prefetch(at(run.destination));
  if (run.source == last.source + last.bytes) return;
  const std::uint64_t bytes = std::min(run.bytes, kLine * kLines);
  for (std::uint64_t i = 0; i < bytes; i += kLine) __builtin_prefetch(at(run.source + i));
}

}  // namespace

void BatchCopy::copy(std::uint64_t begin, std::uint64_t end) const {
  Part part{.run = 0, .offset = begin, .bytes = end - begin};
  for (; part.run < runs_.size() && part.offset >= runs_[part.run].bytes; ++part.run) {
    part.offset -= runs_[part.run].bytes;
  }
  copy(part);
}

std::vector<BatchCopy::Part> BatchCopy::parts(std::uint64_t end, std::uint32_t num_threads) const {
  std::vector<Part> parts;
  std::uint64_t begin = 0;
  std::uint64_t run_begin = 0;
  std::size_t run = 0;
  while (begin < end) {
    for (; run_begin + runs_[run].bytes <= begin; ++run) run_begin += runs_[run].bytes;
    const std::uint64_t share = (end - begin) / (2 * num_threads) / kLeastPart * kLeastPart;
    const std::uint64_t bytes = std::min(std::clamp(share, kLeastPart, kMostPart), end - begin);
    parts.push_back({run, begin - run_begin, bytes});
    begin += bytes;
  }
  return parts;
}

void BatchCopy::copy(const Part& part) const {
  std::uint64_t left = part.bytes;
  std::uint64_t offset = part.offset;
  for (std::size_t i = part.run; left > 0; ++i, offset = 0) {
    const CopyRun& run = runs_[i];
    if (streams_ && i + 1 < runs_.size()) ask_for(runs_[i + 1], run);
    const std::uint64_t bytes = std::min(run.bytes - offset, left);
    std::byte* const destination = at(run.destination + offset);
    const std::byte* const source = at(run.source + offset);
    streams_ ? copy_streaming(destination, source, bytes)
             : static_cast<void>(std::memcpy(destination, source, bytes));
    left -= bytes;
  }
  if (streams_) finish_streaming();
}

}  // namespace kvferry
