// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/error.hpp"
#include "kvferry/base/ids.hpp"
#include "kvferry/connector/wire/step_plan.hpp"

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace kvferry::connector {

static_assert(std::endian::native == std::endian::little,
              "plans and reports are little-endian; add byte swaps for this machine");

/// Appends plain values to a message.
class WireWriter {
 public:
  template <class T>
  requires std::is_arithmetic_v<T>
  void put(T value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  template <class Tag, class Rep>
  void put(StrongId<Tag, Rep> id) {
    put(id.value());
  }
  void put(const std::string& text) {
    put(static_cast<std::uint32_t>(text.size()));
    bytes_.append(text);
  }
  void put(std::span<const BlockSlot> blocks) {
    static_assert(sizeof(BlockSlot) == 16 && std::is_trivially_copyable_v<BlockSlot>);
    put(static_cast<std::uint32_t>(blocks.size()));
    bytes_.append(reinterpret_cast<const char*>(blocks.data()), blocks.size_bytes());
  }
  void put_count(std::size_t count) { put(static_cast<std::uint32_t>(count)); }

  [[nodiscard]] std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads a message; every read is checked against its end.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  requires std::is_arithmetic_v<T>
  void get(T& value) { std::memcpy(&value, take(sizeof value), sizeof value); }
  template <class Tag, class Rep>
  void get(StrongId<Tag, Rep>& id) {
    Rep value{};
    get(value);
    id = StrongId<Tag, Rep>(value);
  }
  /// Reads an enumerator, which is at most `last`.
  template <class Enum>
  requires std::is_enum_v<Enum>
  void get(Enum& value, Enum last) {
    std::underlying_type_t<Enum> raw{};
    get(raw);
    if (raw > static_cast<std::underlying_type_t<Enum>>(last)) fail("an unknown enumerator");
    value = static_cast<Enum>(raw);
  }
  void get(std::string& text) {
    const std::size_t size = get_count(1);
    text.assign(reinterpret_cast<const char*>(take(size)), size);
  }
  void get(std::vector<BlockSlot>& blocks) {
    const std::size_t count = get_count(sizeof(BlockSlot));
    blocks.resize(count);
    const std::byte* source = take(count * sizeof(BlockSlot));
    if (count != 0) std::memcpy(blocks.data(), source, count * sizeof(BlockSlot));
  }
  /// Reads a count of items of at least `item_bytes` each. A count that cannot fit into the rest of
  /// the message is refused before memory is allocated for it.
  [[nodiscard]] std::size_t get_count(std::size_t item_bytes) {
    std::uint32_t count = 0;
    get(count);
    if (std::size_t{count} * item_bytes > bytes_.size() - position_) fail("a count beyond the end");
    return count;
  }
  void expect_end() const {
    if (position_ != bytes_.size()) fail("trailing bytes");
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw ProtocolError("message of " + std::to_string(bytes_.size()) + " bytes, at byte " +
                        std::to_string(position_) + ": " + what +
                        "; scheduler and workers must run the same kvferry version");
  }

 private:
  const std::byte* take(std::size_t size) {
    if (size > bytes_.size() - position_) fail("truncated");
    const std::byte* here = bytes_.data() + position_;
    position_ += size;
    return here;
  }

  std::span<const std::byte> bytes_;
  std::size_t position_ = 0;
};

/// Bytes of a ChunkOrder.
inline constexpr std::size_t kChunkOrderBytes = 4 + 4 + 1;
void put(WireWriter& writer, const ChunkOrder& order);
void get(WireReader& reader, ChunkOrder& order);

/// Writes the first bytes of a message: its kind and its version.
void put_header(WireWriter& writer, std::uint32_t magic);
/// Throws ProtocolError with the magic or version that was found and the one that is known.
void check_header(WireReader& reader, std::uint32_t magic);

}  // namespace kvferry::connector
