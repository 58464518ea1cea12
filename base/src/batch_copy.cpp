// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/batch_copy.hpp"

#include "kvferry/base/streaming_copy.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace kvferry {
namespace {

/// Parts become smaller towards the end, because threads without work wait for the others then; a
/// part of kLeastPart takes 3 us. The first parts are large, because at the end of each part the
/// processor reads ahead in vain.
constexpr std::uint64_t kLeastPart = std::uint64_t{32} << 10U;
constexpr std::uint64_t kMostPart = std::uint64_t{1} << 20U;

std::byte* at(std::uintptr_t address) {
  return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
}

/// Prefetches `run`, which is copied after `last`, if it is at another place. The processor itself
/// prefetches only memory that continues what it reads, so each of many small fragments would wait
/// for memory. They would also wait for address translations, at source and destination; a
/// prefetched line brings the translation of its page.
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
