// SPDX-License-Identifier: Apache-2.0
#include "tier_file.hpp"

#include "kvferry/base/check.hpp"

#include <algorithm>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvferry::fuzz {

using cpu_tier::SharedTier;
using cpu_tier::SharedTierOptions;

namespace {

void write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

}  // namespace

TierFile::TierFile() : path_("/dev/shm/kvferry_tier_fuzzer_" + std::to_string(::getpid())) {
  std::string name = (std::filesystem::temp_directory_path() / "kvferry_fuzz_XXXXXX").string();
  KVFERRY_CHECK(::mkdtemp(name.data()) != nullptr, "no temporary directory");
  directory_ = name;
  // The machine's own figures are read from files, of which there are many.
  write(directory_ / "proc/meminfo", "MemAvailable: 1048576 kB\n");
  write(directory_ / "proc/sys/kernel/random/boot_id", "this-boot\n");
  std::filesystem::create_directory(directory_ / "claims");
  make();
}

TierFile::~TierFile() {
  ::munmap(bytes_, places_.end);
  ::close(descriptor_);
  ::unlink(path_.c_str());
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

bool TierFile::is_replaced() const {
  struct stat named {};
  struct stat opened {};
  return ::stat(path_.c_str(), &named) != 0 || ::fstat(descriptor_, &opened) != 0 ||
         named.st_ino != opened.st_ino;
}

void TierFile::make() {
  if (bytes_ != nullptr) {
    ::munmap(bytes_, places_.end);
    ::close(descriptor_);
  }
  ::unlink(path_.c_str());
  const auto tier = SharedTier::make_or_open(options());
  shape_ = tier->shape();
  places_ = tier->places();
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
  KVFERRY_CHECK(descriptor_ >= 0, "the file cannot be opened");
  tier->file().reserve_part(places_.arenas, places_.end - places_.arenas);
  void* const mapped =
      ::mmap(nullptr, places_.end, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  KVFERRY_CHECK(mapped != MAP_FAILED, "the file cannot be mapped");
  bytes_ = static_cast<std::byte*>(mapped);
  fresh_.assign(metadata().begin(), metadata().end());
  freeze();
}

SharedTierOptions TierFile::options() const {
  return {.path = path_,
          .capacity_bytes = kNumChunks * kChunkBytes,
          .num_ranks = 1,
          .chunk_bytes = kChunkBytes,
          .at_exit = cpu_tier::AtExit::kKeep,
          .patience = std::chrono::milliseconds(200),
          .machine = {directory_ / "proc", directory_ / "cgroup", directory_ / "claims"}};
}

std::span<std::byte> TierFile::slot(cpu_tier::SlotPlace place, std::uint32_t num_slots) const {
  const std::uint64_t bytes = kChunkBytes / num_slots;
  return this->bytes().subspan(
      places_.arenas + place.chunk.value() * kChunkBytes + place.index * bytes, bytes);
}

void TierFile::truncate(std::uint64_t bytes) const {
  const auto size = static_cast<off_t>(places_.end - std::min(bytes, places_.end));
  KVFERRY_CHECK(::ftruncate(descriptor_, size) == 0, "the file cannot be truncated");
}

void TierFile::restore() {
  if (is_replaced()) return make();
  // All of it again, and reserved, whatever was cut off.
  KVFERRY_CHECK(::ftruncate(descriptor_, static_cast<off_t>(places_.end)) == 0 &&
                    ::fallocate(descriptor_, 0, 0, static_cast<off_t>(places_.end)) == 0,
                "the file cannot be restored");
  std::copy(fresh_.begin(), fresh_.end(), bytes_);
  std::fill(bytes_ + places_.arenas, bytes_ + places_.end, std::byte{0});
  freeze();
}

void TierFile::freeze() { frozen_.assign(metadata().begin(), metadata().end()); }

}  // namespace kvferry::fuzz
