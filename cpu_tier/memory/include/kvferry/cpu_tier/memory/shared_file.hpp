// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/own_descriptor.hpp"
#include "kvferry/cpu_tier/memory/huge_pages.hpp"
#include "kvferry/cpu_tier/memory/memory_claim.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <sys/types.h>
#include <utility>

namespace kvferry::cpu_tier {

/// How much of a named file is reserved from the beginning.
enum class Reserved : std::uint8_t {
  kWhole,  ///< No access to it raises a signal.
  kPartly  ///< Only a part at its beginning, until reserve_part().
};

enum class Published : std::uint8_t {
  kYes,
  kNameIsTaken  ///< Another file has the name: open() that one.
};

/// A file of this user on tmpfs or hugetlbfs, whose memory processes share (HostMapping maps it). A
/// file with a path has mode 0600. Either every byte is reserved, so that no access raises a
/// signal, or its users reserve the bytes that they touch. It has a path and not a POSIX shared
/// memory name, because containers share mounts. Move-only. Closes the file and never removes it.
/// Forked children do not have it. One thread at a time, except for const calls.
class SharedFile {
 public:
  /// Makes a new file of zeros that has no name yet, so no process sees it half made, and its
  /// memory is freed if this process ends now. publish() will put it at `path`. `bytes` > 0 is
  /// rounded up to whole pages. Before any page is touched, the function checks the room of the
  /// file system, the memory limits and, on hugetlbfs, the limits of the pool. It creates the
  /// directory of `path` (mode 0700) if only that is missing; no level above it. Throws ConfigError
  /// for a path that is not in shared memory, and ResourceError for a shortage, with mount, figures
  /// and remedy; then nothing is left behind.
  [[nodiscard]] static SharedFile make(const std::filesystem::path& path, std::uint64_t bytes,
                                       const MachineRoot& machine = {});
  /// The same, but only the first `reserved_bytes` are reserved and claimed. The rest is a hole.
  /// The size is fixed nevertheless.
  [[nodiscard]] static SharedFile make_partly(const std::filesystem::path& path,
                                              std::uint64_t bytes, std::uint64_t reserved_bytes,
                                              const MachineRoot& machine = {});
  /// Opens a published file. Throws ResourceError if there is none (yet). Throws ConfigError if it
  /// is not in shared memory, is not reserved as expected, belongs to another user, or gives other
  /// users access.
  [[nodiscard]] static SharedFile open(const std::filesystem::path& path,
                                       Reserved expected = Reserved::kWhole);
  /// The same; returns nothing if there is no such file.
  [[nodiscard]] static std::optional<SharedFile> open_if_there(const std::filesystem::path& path,
                                                               Reserved expected);
  /// Checks whether `bytes` more fit into the file system. Throws as make() would, as far as that
  /// can be checked without making anything.
  static void check_place(const std::filesystem::path& path, std::uint64_t bytes);
  /// Page size of a file at that path; the machine's usual page size if that is unknown, or if the
  /// path would be refused.
  [[nodiscard]] static std::uint64_t page_bytes_at(const std::filesystem::path& path);
  /// Makes a new file of zeros that never has a name (memfd_create). No mount limits its size. Its
  /// memory is freed with the last process that has it open or mapped, however that process ends.
  /// Its size is fixed, and no part of it is reserved: a process that populates a part checks the
  /// limits first, as for anonymous memory. Throws ResourceError.
  [[nodiscard]] static SharedFile make_unnamed(std::uint64_t bytes, PageKind pages);
  /// Opens such a file that `process` (this or another one) has open as `descriptor`. Throws
  /// ResourceError if no such file is visible from here, and ConfigError if it is another kind of
  /// file.
  [[nodiscard]] static SharedFile of_process(pid_t process, int descriptor, PageKind pages);

  /// Gives a new file its name atomically: every process that opens the file sees everything that
  /// was written before. Call it once. Throws ResourceError if the name cannot be created in the
  /// directory.
  [[nodiscard]] Published publish();

  /// Reserves a part (whole pages). Pages that exist already keep their contents. The caller checks
  /// the memory limits. Throws ResourceError with mount, figures and remedy; then some of the part
  /// can be reserved. Any number of processes and threads can call it at the same time.
  void reserve_part(std::uint64_t offset, std::uint64_t bytes) const;
  /// The limit of the file system's mount and its remaining room, for a request of `bytes`; nothing
  /// if the mount has no limit.
  [[nodiscard]] std::optional<MemoryLimit> limit_of_mount(std::uint64_t bytes) const;
  /// Frees the memory of a part (whole pages) for all processes; it reads as zero afterwards. Does
  /// nothing for kPool, whose pages can extend beyond the part.
  void give_back(std::uint64_t offset, std::uint64_t bytes) const noexcept;

  /// For an unnamed file: only for messages.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Unique among all unnamed files that are open on a machine at the same time.
  [[nodiscard]] std::uint64_t inode() const;
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  /// Bytes of memory that the file has in total.
  [[nodiscard]] std::uint64_t reserved_bytes() const;
  /// Page size of the file system, which is that of the file.
  [[nodiscard]] std::uint64_t page_bytes() const { return page_bytes_; }
  /// kPool on hugetlbfs; otherwise kNormal, with huge pages only if the mount option huge= says so.
  /// For an unnamed file, the requested kind: kTransparent gets huge pages if the kernel's
  /// shmem_enabled allows it.
  [[nodiscard]] PageKind pages() const { return pages_; }
  [[nodiscard]] int descriptor() const { return descriptor_.get(); }

 private:
  explicit SharedFile(std::filesystem::path path) : path_(std::move(path)) {}
  /// Opens a new file without a name or memory; its size is only noted.
  [[nodiscard]] static SharedFile make_empty(const std::filesystem::path& path,
                                             std::uint64_t bytes);
  /// Throws ConfigError if the descriptor's file system is not shared memory.
  void look_at_file_system();
  /// Throws ResourceError if there is not enough. The claim can end after the memory is reserved.
  [[nodiscard]] std::unique_ptr<MemoryClaim> claim_room(std::uint64_t bytes,
                                                        const MachineRoot& machine) const;

  std::filesystem::path path_;
  OwnDescriptor descriptor_;
  std::uint64_t size_bytes_ = 0;
  std::uint64_t page_bytes_ = 0;
  PageKind pages_ = PageKind::kNormal;
};

}  // namespace kvferry::cpu_tier
