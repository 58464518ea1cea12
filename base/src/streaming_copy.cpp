// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/streaming_copy.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(KVFERRY_STREAMING_STORES)
#include <immintrin.h>
#endif

namespace kvferry {

#if defined(KVFERRY_STREAMING_STORES)
namespace {

// Two cache lines, because full lines leave the write-combining buffers at once.
constexpr std::size_t kStep = 128;

using Copy = void (*)(std::byte* to, const std::byte* from, std::size_t num_steps);

__attribute__((target("avx2"))) void copy_avx2(std::byte* to, const std::byte* from,
                                               std::size_t num_steps) {
  for (; num_steps > 0; --num_steps, to += kStep, from += kStep) {
    const auto* const source = reinterpret_cast<const __m256i*>(from);
    const __m256i a = _mm256_loadu_si256(source);
    const __m256i b = _mm256_loadu_si256(source + 1);
    const __m256i c = _mm256_loadu_si256(source + 2);
    const __m256i d = _mm256_loadu_si256(source + 3);
    auto* const destination = reinterpret_cast<__m256i*>(to);
    _mm256_stream_si256(destination, a);
    _mm256_stream_si256(destination + 1, b);
    _mm256_stream_si256(destination + 2, c);
    _mm256_stream_si256(destination + 3, d);
  }
}

// Every x86-64 has SSE2.
void copy_sse2(std::byte* to, const std::byte* from, std::size_t num_steps) {
  for (std::size_t i = 0; i < num_steps * (kStep / sizeof(__m128i)); ++i) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i,
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i));
  }
}

}  // namespace

void copy_streaming(void* destination, const void* source, std::size_t bytes) noexcept {
  static const Copy kCopy = __builtin_cpu_supports("avx2") != 0 ? &copy_avx2 : &copy_sse2;
  auto* to = static_cast<std::byte*>(destination);
  const auto* from = static_cast<const std::byte*>(source);
  // Plain stores copy the bytes before the first border of a cache line, and the rest at the end.
  constexpr std::size_t kLine = 64;
  const std::size_t past_border = reinterpret_cast<std::uintptr_t>(to) % kLine;
  const std::size_t head = std::min(bytes, (kLine - past_border) % kLine);
  const std::size_t num_steps = (bytes - head) / kStep;
  std::memcpy(to, from, head);
  kCopy(to + head, from + head, num_steps);
  const std::size_t done = head + num_steps * kStep;
  std::memcpy(to + done, from + done, bytes - done);
}

void finish_streaming() noexcept { _mm_sfence(); }

#else

void copy_streaming(void* destination, const void* source, std::size_t bytes) noexcept {
  std::memcpy(destination, source, bytes);
}

void finish_streaming() noexcept {}

#endif

}  // namespace kvferry
