// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/tier_report.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/memory/host_mapping.hpp"
#include "kvferry/cpu_tier/memory/shared_file.hpp"
#include "kvferry/cpu_tier/memory/unnamed_file.hpp"
#include "kvferry/cpu_tier/peers/member_lock.hpp"
#include "kvferry/cpu_tier/peers/slot_word.hpp"
#include "kvferry/cpu_tier/peers/tier_header.hpp"
#include "kvferry/cpu_tier/peers/tier_hold.hpp"

#include <algorithm>
#include <atomic>
#include <fcntl.h>
#include <span>

namespace kvferry::cpu_tier {
namespace {

namespace fs = std::filesystem;

/// The metadata of a tier that this process has not joined.
class TierView {
 public:
  TierView(const SharedFile& file, const TierHeader& header)
      : file_(file),
        shape_(header.shape()),
        places_(check_tier(header, file)),
        mapping_(file, 0, places_.arenas) {}

  [[nodiscard]] std::vector<InstanceReport> instances() const {
    std::vector<InstanceReport> out;
    const auto records = part<InstanceRecord>(places_.instances, kMaxInstances);
    for (std::uint32_t i = 0; i < kMaxInstances; ++i) {
      const InstanceRecord& record = records[i];
      const LockBase base = record.lock.load(std::memory_order_acquire);
      if (base == 0) continue;
      const ChunkOwner owner =
          ChunkOwner::of(InstanceId(i), record.epoch.load(std::memory_order_relaxed));
      const auto of_it = [&owner](const ChunkRecord& chunk) {
        return chunk.owner.load(std::memory_order_relaxed) == owner.bits;
      };
      const auto all = chunks();
      out.push_back(
          {.name = load_name(record),
           .name_space = record.name_space.load(std::memory_order_relaxed),
           .is_alive = has_living_member(file_.descriptor(), base),
           .num_chunks = static_cast<std::uint32_t>(std::count_if(all.begin(), all.end(), of_it)),
           .weight = record.weight.load(std::memory_order_relaxed)});
    }
    return out;
  }

  void count(TierReport& report) const {
    const auto all = chunks();
    const auto slots =
        part<SlotLine>(places_.slots, std::uint64_t{shape_.num_chunks} * shape_.max_chunk_slots);
    for (std::uint32_t i = 0; i < shape_.num_chunks; ++i) {
      const std::uint32_t num_slots =
          std::min(all[i].num_slots.load(std::memory_order_relaxed), shape_.max_chunk_slots);
      if (all[i].owner.load(std::memory_order_relaxed) == 0) {
        ++(num_slots == 0 ? report.num_empty_chunks : report.num_orphan_chunks);
      }
      for (const auto& slot : slots.subspan(std::uint64_t{i} * shape_.max_chunk_slots, num_slots)) {
        count(SlotWord{slot.word.load(std::memory_order_relaxed)}, report.slots);
      }
    }
  }

 private:
  template <class T>
  [[nodiscard]] std::span<const T> part(std::uint64_t begin, std::uint64_t num) const {
    return {reinterpret_cast<const T*>(mapping_.bytes().data() + begin), num};
  }
  [[nodiscard]] std::span<const ChunkRecord> chunks() const {
    return part<ChunkRecord>(places_.chunks, shape_.num_chunks);
  }
  static void count(SlotWord word, SharedSlotCounts& counts) {
    if (!word.is_sound()) {
      ++counts.num_damaged;
      return;
    }
    counts.num_leased += word.lessees() != 0 ? 1 : 0;
    if (word.withdrawn()) {
      ++counts.num_withdrawn;
      return;
    }
    switch (word.state()) {
      case SharedState::kFree:
        ++counts.num_free;
        return;
      case SharedState::kFilling:
        ++counts.num_filling;
        return;
      case SharedState::kReadable:
        ++counts.num_readable;
        return;
      case SharedState::kDying:
        ++counts.num_dying;
        return;
      case SharedState::kQuarantined:
        ++counts.num_quarantined;
        return;
    }
  }

  const SharedFile& file_;
  TierShape shape_;
  TierPlaces places_;
  HostMapping mapping_;
};

TierHeader header_of(const SharedFile& file) {
  if (const auto header = read_tier_header(file.descriptor())) return *header;
  throw ConfigError(file.path().string() +
                    " is not the file of a shared tier of kvferry: name one"
                    " that 'kvferry tier ls' lists");
}

/// The names of the living instances, for a message.
std::string names_in(const SharedFile& file, const TierHeader& header) {
  std::string names;
  try {
    for (const InstanceReport& instance : TierView(file, header).instances()) {
      if (instance.is_alive) names += (names.empty() ? "" : ", ") + instance.name;
    }
  } catch (const Error&) {
    // A tier of another version cannot be read, but is in use all the same.
  }
  return names.empty() ? "processes that 'fuser " + file.path().string() + "' names" : names;
}

}  // namespace

TierReport inspect_tier(const fs::path& path, const fs::path& proc) {
  const SharedFile file = SharedFile::open(path, Reserved::kPartly);
  const TierHeader header = header_of(file);
  const TierView view(file, header);
  const FileHeader now = FileHeader::of(TierHeader::kMagic, TierHeader::kVersion, proc);
  TierReport report{.path = path,
                    .shape = header.shape(),
                    .capacity_bytes = header.capacity_bytes,
                    .reserved_bytes = file.reserved_bytes(),
                    .made_by = header.made_by.data(),
                    .is_of_this_boot = header.file.is_of_boot(now),
                    .instances = view.instances(),
                    .num_empty_chunks = 0,
                    .num_orphan_chunks = 0,
                    .slots = {}};
  view.count(report);
  return report;
}

std::vector<fs::path> find_tiers(const fs::path& directory) {
  std::vector<fs::path> out;
  visit_files(directory, "", O_RDONLY, [&out](const fs::path& path, int descriptor) {
    struct stat status {};
    if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) return;
    if (read_tier_header(descriptor)) out.push_back(path);
  });
  std::sort(out.begin(), out.end());
  return out;
}

void remove_tier(const fs::path& path) {
  const SharedFile file = SharedFile::open(path, Reserved::kPartly);
  const TierHeader header = header_of(file);
  if (remove_unless_held(file) == Removed::kYes) return;
  throw ResourceError("the shared tier " + path.string() + " is in use by " +
                      names_in(file, header) + "; stop these first");
}

}  // namespace kvferry::cpu_tier
