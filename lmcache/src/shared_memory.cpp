// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"
#include "kvferry/base/rounded_up.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/cpu_tier/file_header.hpp"
#include "kvferry/cpu_tier/file_lock.hpp"
#include "kvferry/cpu_tier/host_mapping.hpp"
#include "kvferry/cpu_tier/machine_topology.hpp"
#include "kvferry/cpu_tier/memory_placement.hpp"
#include "kvferry/cpu_tier/populator.hpp"
#include "kvferry/cpu_tier/shared_file.hpp"
#include "kvferry/lmcache/chunk_memory.hpp"
#include "kvferry/lmcache/store_file.hpp"

#include "memory_text.hpp"

#include <cerrno>
#include <exception>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

namespace kvferry::lmcache {
namespace {

namespace fs = std::filesystem;
using cpu_tier::SharedFile;

StoreFileHeader header_of(std::uint64_t capacity_bytes, const StoreGeometry& geometry,
                          const fs::path& proc) {
  return {
      .file = cpu_tier::FileHeader::of(StoreFileHeader::kMagic, StoreFileHeader::kVersion, proc),
      .capacity_bytes = capacity_bytes,
      .chunk_bytes = geometry.chunk_bytes,
      .num_chunks = geometry.num_chunks,
      .least_slot_bytes = geometry.least_slot_bytes,
      .record_bytes = kRecordBytes};
}

/// The file is this process's alone until it is closed.
void lock_file(int descriptor, const fs::path& path) {
  const int error = cpu_tier::lock_bytes(descriptor, 0, 1);
  if (error == 0) return;
  if (error == EAGAIN) {
    throw ResourceError("shared_path " + path.string() +
                        " is in use by another process (fuser names it); one at a time: stop "
                        "that one, or name another path");
  }
  throw ResourceError("shared_path " + path.string() +
                      " cannot be locked: " + std::generic_category().message(error));
}

/// Made on a thread that is bound to the node, so that its pages come from there.
SharedFile make_on_node(const fs::path& path, std::uint64_t bytes,
                        const cpu_tier::MemoryPlacement& placement) {
  if (!placement.node) return SharedFile::make(path, bytes);
  std::optional<SharedFile> file;
  std::exception_ptr failure;
  std::thread([&] {
    static_cast<void>(placement.topology->bind_this_thread(*placement.node));
    try {
      file.emplace(SharedFile::make(path, bytes));
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
  return std::move(*file);
}

class SharedMemory final : public ChunkMemory {
 public:
  SharedMemory(SharedFile file, const StoreGeometry& geometry, cpu_tier::MemoryPlacement placement,
               Contents contents)
      : ChunkMemory(geometry, contents),
        file_(std::move(file)),
        mapping_(file_),
        placement_(std::move(placement)) {
    std::byte* const begin = mapping_.bytes().data();
    set_places(begin + chunks_offset(geometry),
               {reinterpret_cast<std::atomic<std::uint64_t>*>(begin + StoreFileHeader::kBytes),
                geometry.num_chunks});
  }

  [[nodiscard]] StoreFileHeader& header() const {
    return *reinterpret_cast<StoreFileHeader*>(mapping_.bytes().data());
  }
  void populate() const {
    static_cast<void>(cpu_tier::Populator(placement_).populate(mapping_, mapping_.bytes()));
  }
  [[nodiscard]] cpu_tier::Published publish() { return file_.publish(); }

  [[nodiscard]] std::uint32_t num_ready() const override { return geometry().num_chunks; }
  [[nodiscard]] std::string warning() const override { return {}; }
  [[nodiscard]] std::string description() const override {
    return memory_text(mapping_.pages(), cpu_tier::huge_page_share(mapping_.bytes()),
                       placement_.reason, file_.path().string());
  }

 private:
  SharedFile file_;
  cpu_tier::HostMapping mapping_;
  cpu_tier::MemoryPlacement placement_;
};

cpu_tier::FileInQuestion in_question(const fs::path& path) {
  return {.name = "shared_path " + path.string(),
          .maker = "kvferry for LMCache",
          .remedy = "remove the file, or name another path"};
}

/// Throws ConfigError unless the file is one that this process would have made.
void check_store(const StoreFileHeader& found, const StoreFileHeader& expected,
                 const fs::path& path) {
  const cpu_tier::FileInQuestion file = in_question(path);
  check_header(found.file, expected.file, file);
  const auto check = [&file](const char* what, std::uint64_t has, std::uint64_t wants) {
    cpu_tier::check_figure(what, has, wants, file);
  };
  check("capacity", found.capacity_bytes, expected.capacity_bytes);
  check("chunks of bytes", found.chunk_bytes, expected.chunk_bytes);
  check("chunks", found.num_chunks, expected.num_chunks);
  check("least slots of bytes", found.least_slot_bytes, expected.least_slot_bytes);
  check("records of bytes", found.record_bytes, expected.record_bytes);
}

}  // namespace

std::unique_ptr<ChunkMemory> make_shared_memory(const fs::path& path, const MemoryOptions& options,
                                                const fs::path& proc) {
  if (options.pages) {
    throw ConfigError(
        "huge_pages cannot be chosen with shared_path: they are those of the file "
        "system (a hugetlbfs, or a tmpfs that is mounted with huge=)");
  }
  if (!path.is_absolute()) {
    throw ConfigError("shared_path " + path.string() +
                      " is not absolute; write for example '/dev/shm/kvferry-lmcache'");
  }
  const StoreGeometry geometry = store_geometry(options.capacity_bytes);
  const StoreFileHeader expected = header_of(options.capacity_bytes, geometry, proc);
  const std::uint64_t bytes = chunks_offset(geometry) + geometry.chunk_bytes * geometry.num_chunks;
  const cpu_tier::MemoryPlacement placement = cpu_tier::choose_memory_placement(
      std::make_shared<const cpu_tier::MachineTopology>(), options.numa_node, std::nullopt);
  if (!fs::exists(fs::symlink_status(path))) {
    SharedFile file = make_on_node(path, bytes, placement);
    // Before it has a name: nobody else can have it.
    lock_file(file.descriptor(), path);
    auto memory =
        std::make_unique<SharedMemory>(std::move(file), geometry, placement, Contents::kFresh);
    memory->populate();
    memory->header() = expected;
    KVFERRY_PAUSE_POINT("lmcache.before_publish");
    if (memory->publish() == cpu_tier::Published::kYes) return memory;
  }
  SharedFile file = SharedFile::open(path);
  if (file.size_bytes() < StoreFileHeader::kBytes) {
    cpu_tier::check_magic({}, expected.file, in_question(path));
  }
  lock_file(file.descriptor(), path);
  const std::uint64_t found_bytes = file.size_bytes();
  const std::uint64_t page_bytes = file.page_bytes();
  {
    const cpu_tier::HostMapping mapping(file);
    check_store(*reinterpret_cast<const StoreFileHeader*>(mapping.bytes().data()), expected, path);
  }
  cpu_tier::check_figure("bytes", found_bytes, rounded_up(bytes, page_bytes), in_question(path));
  auto memory =
      std::make_unique<SharedMemory>(std::move(file), geometry, placement, Contents::kKept);
  memory->populate();
  return memory;
}

}  // namespace kvferry::lmcache
