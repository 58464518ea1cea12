// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvferry::ptx {

/// kAdd: numbers of 64 bits, to which a launch adds in one step, as often as it likes.
enum class Access : std::uint8_t { kRead, kWrite, kAdd };

/// What a launch may touch of the device's memory: ranges at addresses of the device's, each for
/// one kind of access, in memory of its own. A byte may be written once in a launch: the kernels
/// promise no order between their teams, so that a second write is a race.
class GlobalMemory {
 public:
  struct Range {
    std::uint64_t address;
    Access access;
    std::vector<std::uint8_t> bytes;
    /// Of a range to be written: whether the launch wrote the byte.
    std::vector<bool> written;

    [[nodiscard]] std::uint64_t end() const { return address + bytes.size(); }
  };

  /// Adds a range. It must not overlap another one.
  void map(std::uint64_t address, Access access, std::vector<std::uint8_t> bytes);

  /// Index of the range that holds the bytes. Throws Fault (kBounds) if none does, or not for this.
  std::size_t check(std::uint64_t address, std::size_t bytes, Access access) const;
  /// What lies at `address`. Throws Fault (kBounds).
  [[nodiscard]] std::span<const std::uint8_t> read(std::uint64_t address, std::size_t bytes) const;
  /// Throws Fault (kBounds, kWrittenTwice).
  void write(std::uint64_t address, std::span<const std::uint8_t> bytes);

  /// Throws Fault (kBounds).
  void add(std::uint64_t address, std::uint64_t value);

  /// For the host emulation: the place of a range in this process, without rights; null if there is
  /// none.
  [[nodiscard]] std::uint8_t* host_address(std::uint64_t address, std::size_t bytes);

  /// In order of addresses.
  [[nodiscard]] const std::vector<Range>& ranges() const { return ranges_; }

 private:
  /// Index of the range that holds the bytes, or the number of ranges.
  [[nodiscard]] std::size_t find(std::uint64_t address, std::size_t bytes) const;

  std::vector<Range> ranges_;
};

}  // namespace kvferry::ptx
