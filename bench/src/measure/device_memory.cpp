// SPDX-License-Identifier: Apache-2.0
#include "measure/device_memory.hpp"

#include "measure/wait_for.hpp"

#include <algorithm>

namespace kvferry::bench {

DeviceMemory::DeviceMemory(gpu::Device& device, std::uint64_t bytes)
    : bytes_(bytes),
      buffer_(device.allocate(bytes)),
      window_(device, std::min(bytes, kWindowBytes), HostMemoryKind::kPinned),
      stream_(device.create_stream()),
      ended_(device.create_event()) {}

void DeviceMemory::write(std::uint64_t begin, std::uint64_t bytes, PatternKey key) {
  const std::uint64_t end = begin + bytes;
  for (; begin < end; begin += kWindowBytes) {
    const std::uint64_t part = std::min(kWindowBytes, end - begin);
    write_pattern(PatternPiece{window_.bytes().first(part), begin}, key);
    copy(gpu::CopyDirection::kHostToDevice, begin, part);
  }
}

// Checks as many pieces at once as one window holds. A piece that is too large for it is checked in
// parts.
void DeviceMemory::check_pieces(std::uint64_t begin, std::uint64_t piece_bytes,
                                std::span<const BlockId> places, PatternKey key, Verifier& verifier,
                                std::string_view what) {
  const auto offset_of = [=](BlockId place) { return begin + place.value() * piece_bytes; };
  while (!places.empty()) {
    const std::uint64_t first = offset_of(places.front());
    if (piece_bytes > kWindowBytes) {
      for (std::uint64_t at = first; at < first + piece_bytes; at += kWindowBytes) {
        const auto window = read(at, std::min(kWindowBytes, first + piece_bytes - at));
        verifier.check({1, [&](std::size_t) { return PatternPiece{window, at}; }}, key, what);
      }
      places = places.subspan(1);
      continue;
    }
    const std::span<std::byte> window = read(first, std::min(kWindowBytes, bytes_ - first));
    const auto beyond = std::partition_point(places.begin(), places.end(), [&](BlockId place) {
      return offset_of(place) + piece_bytes <= first + window.size();
    });
    const auto here = places.first(static_cast<std::size_t>(beyond - places.begin()));
    const auto piece = [&](std::size_t i) {
      const std::uint64_t at = offset_of(here[i]);
      return PatternPiece{window.subspan(at - first, piece_bytes), at};
    };
    verifier.check({here.size(), piece}, key, what);
    places = places.subspan(here.size());
  }
}

std::span<std::byte> DeviceMemory::read(std::uint64_t begin, std::uint64_t bytes) {
  copy(gpu::CopyDirection::kDeviceToHost, begin, bytes);
  return window_.bytes().first(bytes);
}

void DeviceMemory::copy(gpu::CopyDirection direction, std::uint64_t begin, std::uint64_t bytes) {
  const std::uintptr_t host = window_.device_address();
  const std::uintptr_t device = buffer_->address() + begin;
  const bool to_host = direction == gpu::CopyDirection::kDeviceToHost;
  const gpu::CopyRun run{to_host ? host : device, to_host ? device : host, bytes};
  stream_->copy(direction, {&run, 1});
  stream_->record(*ended_);
  wait_for(*ended_);
}

}  // namespace kvferry::bench
