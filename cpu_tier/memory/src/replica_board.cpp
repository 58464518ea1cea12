// SPDX-License-Identifier: Apache-2.0
#include "replica_board.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/stable_hash.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/base/without_forks.hpp"
#include "kvferry/cpu_tier/memory/file_lock.hpp"
#include "kvferry/cpu_tier/memory/unnamed_file.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <sys/mman.h>
#include <thread>
#include <utility>

namespace kvferry::cpu_tier {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBoardPrefix = "kvferry-replicas-";
constexpr std::uint64_t kBoardMagic = 0x3161636c7065726bU;
/// The version of Page and Member. Members of other builds must not read them.
constexpr std::uint32_t kVersion = 2;
constexpr auto kPollEvery = std::chrono::milliseconds(5);
constexpr const char* kRemedy =
    "restart the engine, or set share_replicated_kv: false so that every rank keeps its "
    "own copy";

enum class MemberState : std::uint32_t { kAbsent, kJoined, kEnded };

fs::path path_of(const ReplicaGroup& group, const MachineRoot& machine) {
  return machine.claims / (kBoardPrefix + std::to_string(stable_hash(group.name)));
}

/// Removes the boards whose first member is gone. A process that was killed leaves its board.
void sweep(const fs::path& directory) {
  visit_files(directory, kBoardPrefix, O_RDWR, [](const fs::path& path, int file) {
    if (!is_locked(file, 0)) ::unlink(path.c_str());
  });
}

}  // namespace

struct ReplicaBoard::Member {
  std::atomic<std::uint32_t> num_resident{0};
  std::atomic<MemberState> state{MemberState::kAbsent};
  std::atomic<pid_t> process{0};
  std::array<char, 244> why_ended{};  ///< Valid after kEnded.
};

struct ReplicaBoard::Page {
  std::uint64_t magic = kBoardMagic;
  std::uint32_t version = kVersion;
  std::uint32_t num_members = 0;
  ReplicaGeometry geometry;
  ReplicaOffer offer;
};

ReplicaBoard::Mapping::~Mapping() {
  if (page != nullptr) ::munmap(page, bytes);
}

ReplicaBoard::Member& ReplicaBoard::member(std::uint32_t index) const {
  static_assert(sizeof(Member) == 256 && std::atomic<std::uint32_t>::is_always_lock_free);
  auto* const page = reinterpret_cast<std::byte*>(mapping_.page);
  static_assert(sizeof(Page) <= sizeof(Member));
  return *reinterpret_cast<Member*>(page + (index + 1) * sizeof(Member));
}

ReplicaBoard::ReplicaBoard(const ReplicaGroup& group, const ReplicaGeometry& geometry,
                           const ReplicaOffer& offer, const MachineRoot& machine)
    : group_(group), path_(path_of(group, machine)), offer_(offer) {
  sweep(machine.claims);
  const std::uint64_t bytes = (group.size + 1) * sizeof(Member);
  descriptor_ = OwnDescriptor::opened_by([&] { return open_unnamed(machine.claims); });
  // The pages are reserved, because a page that the file system lacks at the first touch is a
  // signal.
  if (!descriptor_ || ::fallocate(descriptor_.get(), 0, 0, static_cast<off_t>(bytes)) != 0 ||
      !lock_own()) {
    throw ResourceError("a file of " + std::to_string(bytes) + " bytes in " +
                        machine.claims.string() +
                        ", with which ranks find the KV cache that they " +
                        "share, cannot be created: " + cpu_tier::text_of(errno) +
                        "; make room there, or set share_replicated_kv: false");
  }
  map(bytes);
  new (mapping_.page) Page{kBoardMagic, kVersion, group.size, geometry, offer};
  for (std::uint32_t index = 0; index < group.size; ++index) new (&member(index)) Member;
  enter();
}

ReplicaBoard::ReplicaBoard(const ReplicaGroup& group, const ReplicaGeometry& geometry,
                           const MachineRoot& machine)
    : group_(group), path_(path_of(group, machine)) {
  const auto end = std::chrono::steady_clock::now() + group.patience;
  while (!open_published()) {
    if (std::chrono::steady_clock::now() >= end) {
      throw TimeoutError(
          "member " + std::to_string(group.index) + " of " + std::to_string(group.size) +
          " found no memory of the first one within " +
          std::to_string(std::chrono::duration_cast<std::chrono::seconds>(group.patience).count()) +
          " s (" + path_.string() +
          "): that rank failed, or this rank cannot see it because it is in another container "
          "or on another node; " +
          kRemedy);
    }
    std::this_thread::sleep_for(kPollEvery);
  }
  take_offer(geometry);
  if (!lock_own()) {
    throw TopologyError("member " + std::to_string(group.index) + " of " +
                        std::to_string(group.size) + " in process " + std::to_string(::getpid()) +
                        " finds that " + text_of(group.index) +
                        " has joined already: two workers run under one rank, or two engines under "
                        "one kv_transfer_config.engine_id; give each its own");
  }
  enter();
}

ReplicaBoard::~ReplicaBoard() {
  // In a forked child the file is the parent's and is not mapped.
  if (!descriptor_) return;
  end("it closed its memory");
  withdraw();
}

bool ReplicaBoard::open_published() {
  OwnDescriptor file = OwnDescriptor::open(path_.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK);
  struct stat status {};
  if (!file || !is_locked(file.get(), 0) || ::fstat(file.get(), &status) != 0) {
    return false;
  }
  if (status.st_uid != ::geteuid() || (status.st_mode & (S_IRWXG | S_IRWXO)) != 0 ||
      status.st_size < static_cast<off_t>(sizeof(Member))) {
    throw ResourceError(path_.string() + " is of user " + std::to_string(status.st_uid) +
                        ", open to others or incomplete; expected user " +
                        std::to_string(::geteuid()) + " and mode 0600: remove it, and " + kRemedy);
  }
  descriptor_ = std::move(file);
  map(static_cast<std::uint64_t>(status.st_size));
  return true;
}

void ReplicaBoard::take_offer(const ReplicaGeometry& geometry) {
  const Page& page = *mapping_.page;
  const auto expect_equal = [&](const char* what, std::uint64_t own, std::uint64_t of_first) {
    if (own == of_first) return;
    throw TopologyError("member " + std::to_string(group_.index) +
                        " of the group that shares one "
                        "KV cache has " +
                        what + " " + std::to_string(own) + ", its first member " +
                        std::to_string(of_first) +
                        ": every process of the engine must start with the same configuration and "
                        "the same version of kvferry");
  };
  expect_equal("magic number", kBoardMagic, page.magic);
  expect_equal("ABI version", kVersion, page.version);
  expect_equal("group size", group_.size, page.num_members);
  expect_equal("bytes per chunk", geometry.chunk_bytes, page.geometry.chunk_bytes);
  expect_equal("chunks", geometry.num_chunks, page.geometry.num_chunks);
  expect_equal("bytes per piece", geometry.pinned_piece_bytes, page.geometry.pinned_piece_bytes);
  expect_equal("tags per chunk", geometry.tags_per_chunk, page.geometry.tags_per_chunk);
  expect_equal("bytes of the board", (group_.size + 1) * sizeof(Member), mapping_.bytes);
  offer_ = page.offer;
}

void ReplicaBoard::map(std::uint64_t bytes) {
  void* mapped = MAP_FAILED;
  int error = 0;
  {
    // A child's copy of the mapping would keep this member's lock after the process is gone.
    const WithoutForks section;
    mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_.get(), 0);
    if (mapped == MAP_FAILED || ::madvise(mapped, bytes, MADV_DONTFORK) != 0) error = errno;
  }
  if (error != 0) {
    if (mapped != MAP_FAILED) ::munmap(mapped, bytes);
    throw ResourceError("mapping " + path_.string() + " failed: " + cpu_tier::text_of(error));
  }
  mapping_.page = static_cast<Page*>(mapped);
  mapping_.bytes = bytes;
}

bool ReplicaBoard::lock_own() { return lock_bytes(descriptor_.get(), group_.index, 1) == 0; }

void ReplicaBoard::enter() {
  Member& own = member(group_.index);
  own.process.store(::getpid(), std::memory_order_relaxed);
  own.state.store(MemberState::kJoined, std::memory_order_release);
}

void ReplicaBoard::publish() {
  KVFERRY_PAUSE_POINT("replica_board.publish");
  int error = give_name(descriptor_.get(), path_);
  if (error == EEXIST) {
    // Its process may have died after the sweep.
    sweep(path_.parent_path());
    error = give_name(descriptor_.get(), path_);
  }
  if (error == EEXIST) {
    throw TopologyError(path_.string() +
                        " belongs to a running process: two workers run under one rank, or two "
                        "engines under one kv_transfer_config.engine_id; give each its own");
  }
  if (error != 0) {
    throw ResourceError("naming " + path_.string() + " failed: " + cpu_tier::text_of(error) + "; " +
                        kRemedy);
  }
  is_published_ = true;
}

void ReplicaBoard::withdraw() noexcept {
  if (is_published_) ::unlink(path_.c_str());
  is_published_ = false;
}

ReplicaBoard::Standing ReplicaBoard::standing(std::uint32_t index) const {
  if (member(index).state.load(std::memory_order_acquire) == MemberState::kAbsent) {
    return Standing::kNotYet;
  }
  return index == group_.index || is_locked(descriptor_.get(), index) ? Standing::kLives
                                                                      : Standing::kGone;
}

void ReplicaBoard::set_resident(std::uint32_t num_pieces) noexcept {
  member(group_.index).num_resident.store(num_pieces, std::memory_order_release);
}

std::uint32_t ReplicaBoard::num_resident(std::uint32_t index) const {
  return member(index).num_resident.load(std::memory_order_acquire);
}

void ReplicaBoard::end(std::string_view why) noexcept {
  Member& own = member(group_.index);
  if (own.state.load(std::memory_order_relaxed) == MemberState::kEnded) return;
  // The last byte stays 0.
  why.copy(own.why_ended.data(), own.why_ended.size() - 1);
  own.state.store(MemberState::kEnded, std::memory_order_release);
}

std::string ReplicaBoard::why_ended(std::uint32_t index) const {
  const Member& of = member(index);
  if (of.state.load(std::memory_order_acquire) != MemberState::kEnded) return {};
  return {of.why_ended.data(), ::strnlen(of.why_ended.data(), of.why_ended.size())};
}

std::string ReplicaBoard::text_of(std::uint32_t index) const {
  return "member " + std::to_string(index) + " of " + std::to_string(group_.size) + " (process " +
         std::to_string(member(index).process.load(std::memory_order_relaxed)) + ")";
}

}  // namespace kvferry::cpu_tier
