// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/batch_copy.hpp"

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
  for_each(part, [this](std::size_t run, std::uint64_t offset, std::uint64_t bytes) {
    std::byte* const destination = at(runs_[run].destination + offset);
    const std::byte* const source = at(runs_[run].source + offset);
    streams_ ? copy_streaming(destination, source, bytes)
             : static_cast<void>(std::memcpy(destination, source, bytes));
  });
}

// The next run is asked for if it is at another place. The processor itself prefetches only memory
// that continues what it reads, so each of many small fragments would wait for memory. They would
// also wait for address translations, at source and destination; a prefetched line brings the
// translation of its page.
void BatchCopy::ask_for_next(std::size_t run) const {
  constexpr std::uint64_t kLine = 64;
  constexpr std::uint64_t kLines = 8;
  if (run + 1 == runs_.size()) return;
  const CopyRun& last = runs_[run];
  const CopyRun& next = runs_[run + 1];
  if (next.destination != last.destination + last.bytes) __builtin_prefetch(at(next.destination));
  if (next.source == last.source + last.bytes) return;
  const std::uint64_t bytes = std::min(next.bytes, kLine * kLines);
  for (std::uint64_t i = 0; i < bytes; i += kLine) __builtin_prefetch(at(next.source + i));
}

}  // namespace kvferry
