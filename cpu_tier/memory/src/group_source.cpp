// SPDX-License-Identifier: Apache-2.0
#include "group_source.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"

#include "claimed_grant.hpp"

#include <algorithm>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>

namespace kvferry::cpu_tier {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLongestPoll = std::chrono::milliseconds(10);

ReplicaGeometry geometry_of(const ArenaShape& asked, const ArenaOptions& options) {
  return {asked.chunk_bytes, asked.num_chunks, options.pinned_piece_bytes, asked.tags_per_chunk};
}

/// Opens a file that the first member offers.
SharedFile file_of(const ReplicaBoard& board, const OfferedFile& offered, PageKind pages) {
  std::string why;
  try {
    SharedFile file = SharedFile::of_process(board.offer().process, offered.descriptor, pages);
    // In another pid namespace, another process can have this number.
    if (file.inode() == offered.inode) return file;
    why = file.path().string() + " is another process's file";
  } catch (const Error& error) {
    why = error.what();
  }
  if (board.standing(0) == ReplicaBoard::Standing::kGone) {
    throw ResourceError(board.text_of(0) + " is gone, and its memory with it: restart the engine");
  }
  throw ConfigError("the memory of " + board.text_of(0) + " is not available: " + why +
                    ". Ranks that share a KV cache must see each other's processes: let their "
                    "containers share a pid namespace (docker --pid, Kubernetes "
                    "shareProcessNamespace) and a user, or set share_replicated_kv: false");
}

OfferedFile offered(const std::optional<SharedFile>& file) {
  if (!file) return {};
  return {file->descriptor(), file->inode()};
}

}  // namespace

ArenaGrant GroupSource::grant(const ArenaShape& asked, const ArenaOptions& options) {
  chunk_bytes_ = asked.chunk_bytes;
  ArenaGrant grant = group_.index == 0 ? make(asked, options) : join(asked, options);
  // One step has one piece of each member, so that all members' pieces become ready at the same
  // time. The very first piece waits only for its home, so that members can be made one after the
  // other.
  grant.pieces_per_step = group_.size;
  return grant;
}

ArenaGrant GroupSource::make(const ArenaShape& asked, const ArenaOptions& options) {
  const PageKind pages = pages_for(asked, options);
  const ClaimTurn turn(options.machine);
  ArenaGrant grant = claimed_grant(turn, asked, pages, options);
  const ArenaShape granted{asked.chunk_bytes, grant.num_chunks, asked.tags_per_chunk};
  // Even a small arena has at least one piece for each member, if the pages allow it.
  grant.chunks_per_piece = chunks_per_piece(
      granted, std::min(options.pinned_piece_bytes, granted.bytes()) / group_.size);
  file_.emplace(SharedFile::make_unnamed(granted.bytes(), pages));
  if (granted.tag_bytes() > 0) {
    tag_file_.emplace(SharedFile::make_unnamed(granted.tag_bytes(), PageKind::kNormal));
  }
  board_ = std::make_unique<ReplicaBoard>(group_, geometry_of(asked, options),
                                          ReplicaOffer{.num_chunks = grant.num_chunks,
                                                       .chunks_per_piece = grant.chunks_per_piece,
                                                       .pages = pages,
                                                       .process = ::getpid(),
                                                       .chunks = offered(file_),
                                                       .tags = offered(tag_file_)},
                                          options.machine);
  return grant;
}

ArenaGrant GroupSource::join(const ArenaShape& asked, const ArenaOptions& options) {
  board_ = std::make_unique<ReplicaBoard>(group_, geometry_of(asked, options), options.machine);
  const ReplicaOffer& offer = board_->offer();
  file_.emplace(file_of(*board_, offer.chunks, offer.pages));
  if (asked.tags_per_chunk > 0) {
    tag_file_.emplace(file_of(*board_, offer.tags, PageKind::kNormal));
  }
  return {.num_chunks = offer.num_chunks, .chunks_per_piece = offer.chunks_per_piece};
}

std::unique_ptr<HostMapping> GroupSource::map_tags(const ArenaShape& /*granted*/) {
  return std::make_unique<HostMapping>(*tag_file_);
}

std::unique_ptr<HostMapping> GroupSource::map() {
  auto mapping = std::make_unique<HostMapping>(*file_);
  // It is published only after it is mapped, because mapping takes the pool's pages.
  if (group_.index == 0) board_->publish();
  return mapping;
}

std::optional<std::chrono::nanoseconds> GroupSource::make_resident(ArenaPages& pages,
                                                                   ChunkRange chunks,
                                                                   const std::stop_token& stop) {
  const std::uint32_t of_piece = board_->offer().chunks_per_piece;
  const PieceId first(chunks.begin.value() / of_piece);
  const PieceId end((chunks.end.value() + of_piece - 1) / of_piece);
  for (PieceId piece = first; piece < end; piece = piece.next()) {
    if (!group_.is_home_of(piece) || is_resident(piece)) continue;
    if (!populate_own_piece(pages, piece, stop)) return std::nullopt;
  }
  // Other members' pieces come last, so that all members populate at the same time.
  const Clock::time_point began = Clock::now();
  for (PieceId piece = first; piece < end; piece = piece.next()) {
    if (!wait_for(piece, stop)) return std::nullopt;
  }
  const std::chrono::nanoseconds waited = Clock::now() - began;
  if (!pages.map_resident(pages.bytes_of(chunks), stop)) return std::nullopt;
  return waited;
}

// Each member releases its mapping. The home takes the pages out of the file. They go back to the
// machine as soon as no member's device has them registered.
void GroupSource::give_back(ArenaPages& pages, ChunkRange chunks) noexcept {
  const std::uint32_t of_piece = board_->offer().chunks_per_piece;
  for (std::uint32_t first = chunks.begin.value(); first < chunks.end.value(); first += of_piece) {
    const ChunkRange piece{ChunkId(first), ChunkId(std::min(first + of_piece, chunks.end.value()))};
    const std::span<std::byte> part = pages.bytes_of(piece);
    pages.mapping().release(part);
    if (group_.is_home_of(PieceId(first / of_piece))) {
      file_->give_back(first * chunk_bytes_, part.size());
    }
  }
}

// Whichever member touches a page first, the page comes from the node of the piece's home, because
// the file has kept that preference.
bool GroupSource::make_resident_again(ArenaPages& pages, ChunkRange chunks,
                                      const std::stop_token& stop) {
  const std::span<std::byte> part = pages.bytes_of(chunks);
  const auto claim = pages.claim(pages.needed_bytes(chunks));
  return pages.populate(part, stop);
}

bool GroupSource::populate_own_piece(ArenaPages& pages, PieceId piece,
                                     const std::stop_token& stop) {
  KVFERRY_PAUSE_POINT("arena.populate_own_piece");
  const ReplicaOffer& offer = board_->offer();
  const std::uint32_t first = piece.value() * offer.chunks_per_piece;
  const ChunkRange chunks{ChunkId(first),
                          ChunkId(std::min(first + offer.chunks_per_piece, offer.num_chunks))};
  const std::span<std::byte> part = pages.bytes_of(chunks);
  pages.check_budget(pages.needed_bytes(chunks));
  // The file keeps the preference, so it applies to this member's pieces only.
  pages.prefer_node(part);
  const auto give_back = [&] {
    pages.mapping().release(part);
    file_->give_back(first * chunk_bytes_, part.size());
  };
  try {
    if (!pages.populate(part, stop)) {
      give_back();
      return false;
    }
  } catch (const Error&) {
    give_back();
    throw;
  }
  board_->set_resident(number_at_home(piece) + 1);
  return true;
}

bool GroupSource::wait_for(PieceId piece, const std::stop_token& stop) const {
  using Standing = ReplicaBoard::Standing;
  const std::uint32_t home = group_.home_of(piece);
  const Clock::time_point end = Clock::now() + group_.patience;
  for (auto pause = std::chrono::microseconds(50);;
       pause = std::min<std::chrono::microseconds>(2 * pause, kLongestPoll)) {
    // The state of the home is read first, because the home may end right after this piece.
    const Standing standing = board_->standing(home);
    const std::string why = board_->why_ended(home);
    if (is_resident(piece)) return true;
    if (stop.stop_requested()) return false;
    const std::string what = "piece " + std::to_string(piece.value()) + " of the KV cache that " +
                             std::to_string(group_.size) + " ranks share is missing: its home, " +
                             board_->text_of(home) + ", ";
    if (!why.empty()) throw ResourceError(what + "has ended its growth: " + why);
    if (standing == Standing::kGone) throw ResourceError(what + "is gone");
    const bool is_bounded = standing == Standing::kNotYet || !stop.stop_possible();
    if (is_bounded && Clock::now() >= end) {
      throw TimeoutError(
          what + (standing == Standing::kNotYet ? "has not joined" : "has not made it resident") +
          " within " +
          std::to_string(
              std::chrono::duration_cast<std::chrono::seconds>(group_.patience).count()) +
          " s; restart the engine, or set share_replicated_kv: false");
    }
    std::this_thread::sleep_for(pause);
  }
}

std::unique_ptr<ArenaSource> make_group_source(const ReplicaGroup& group) {
  if (group.size == 0 || group.index >= group.size) {
    throw ConfigError("member " + std::to_string(group.index) + " of a replica group of " +
                      std::to_string(group.size) + "; expected a member below the size");
  }
  if (!group.has_others()) return make_own_source();
  return std::make_unique<GroupSource>(group);
}

}  // namespace kvferry::cpu_tier
