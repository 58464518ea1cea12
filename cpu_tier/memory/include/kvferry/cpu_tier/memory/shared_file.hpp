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

/// How much of a named file is there from the beginning.
enum class Reserved : std::uint8_t {
  kWhole,  ///< No access to it is a signal.
  kPartly  ///< A part behind its beginning only, until reserve_part().
};

enum class Published : std::uint8_t {
  kYes,
  kNameIsTaken  ///< Another file has it: open() that one.
};

/// A file in shared memory, whose memory processes share (HostMapping maps it): on tmpfs or
/// hugetlbfs, of this user's. One with a path has mode 0600 and every byte reserved, so that no
/// access to it is a signal, or is one whose users reserve what they touch; it is named by a path
/// and not by a POSIX name, because containers share mounts. Move-only; closes the file and never
/// removes it. Not in forked children. One thread at a time, but for const calls.
class SharedFile {
 public:
  /// A new file of zeros that has no name yet: nobody sees it half made, and with a process that
  /// ends here its memory goes. `path` is where publish() will put it; `bytes` > 0 are rounded up
  /// to whole pages. The room of the file system, the memory budget and, on hugetlbfs, the pool's
  /// are checked before anything is touched. The directory of `path` is made (mode 0700) if that
  /// alone is missing; no level above it. Throws ConfigError for a path that is not in shared
  /// memory and ResourceError for a shortage, with mount, figures and remedy; nothing is left
  /// behind then.
  [[nodiscard]] static SharedFile make(const std::filesystem::path& path, std::uint64_t bytes,
                                       const MachineRoot& machine = {});
  /// The same, of which only the first `reserved_bytes` are reserved and claimed; the rest is holes
  /// up to its size, which is fixed all the same.
  [[nodiscard]] static SharedFile make_partly(const std::filesystem::path& path,
                                              std::uint64_t bytes, std::uint64_t reserved_bytes,
                                              const MachineRoot& machine = {});
  /// One that was published. Throws ResourceError if there is none (yet), and ConfigError if it is
  /// not in shared memory, not reserved as expected, or another user's or open to others.
  [[nodiscard]] static SharedFile open(const std::filesystem::path& path,
                                       Reserved expected = Reserved::kWhole);
  /// The same; nothing if there is none.
  [[nodiscard]] static std::optional<SharedFile> open_if_there(const std::filesystem::path& path,
                                                               Reserved expected);
  /// Throws as make() would, as far as that can be told without making anything. For `bytes` more
  /// in the file system.
  static void check_place(const std::filesystem::path& path, std::uint64_t bytes);
  /// Of the pages that a file at that path would have; the machine's usual ones if that cannot be
  /// told, or would be refused.
  [[nodiscard]] static std::uint64_t page_bytes_at(const std::filesystem::path& path);
  /// A new file of zeros that never has a name (memfd_create): no mount bounds it, and it goes with
  /// the last process that has it open or mapped, however that ends. Its size is fixed and nothing
  /// of it reserved: who populates a part checks the budget first, as for anonymous memory. Throws
  /// ResourceError.
  [[nodiscard]] static SharedFile make_unnamed(std::uint64_t bytes, PageKind pages);
  /// Such a file that `process`, this one or another, has open as `descriptor`. Throws
  /// ResourceError if there is none that can be seen from here, and ConfigError if it is another
  /// kind of file.
  [[nodiscard]] static SharedFile of_process(pid_t process, int descriptor, PageKind pages);

  /// Gives a new file its name, at once and whole: what was written before is seen by whoever opens
  /// it. Once. Throws ResourceError if the directory takes no name.
  [[nodiscard]] Published publish();

  /// Reserves a part of whole pages: what is there already, by whomever, stays as it is. The budget
  /// is the caller's matter. Throws ResourceError with mount, figures and remedy; some of it may be
  /// reserved then. Any number of processes and threads at once.
  void reserve_part(std::uint64_t offset, std::uint64_t bytes) const;
  /// What its file system has left, of which `bytes` are wanted; nothing if its mount has no limit.
  [[nodiscard]] std::optional<MemoryLimit> limit_of_mount(std::uint64_t bytes) const;
  /// Gives the memory of a part of whole pages back, in all processes; it reads as zero afterwards.
  /// Nothing for kPool, whose pages may reach over the part's ends.
  void give_back(std::uint64_t offset, std::uint64_t bytes) const noexcept;

  /// Of an unnamed one: only for messages.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// No two files of a machine that are open at once and have no name have the same one.
  [[nodiscard]] std::uint64_t inode() const;
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  /// In all, wherever they are.
  [[nodiscard]] std::uint64_t reserved_bytes() const;
  /// Of the file system: its pages are those of the file.
  [[nodiscard]] std::uint64_t page_bytes() const { return page_bytes_; }
  /// kPool on hugetlbfs; else kNormal, and huge ones only where the mount says so (huge=). Of an
  /// unnamed one as wished: kTransparent gets huge ones where the kernel's shmem_enabled allows.
  [[nodiscard]] PageKind pages() const { return pages_; }
  [[nodiscard]] int descriptor() const { return descriptor_.get(); }

 private:
  explicit SharedFile(std::filesystem::path path) : path_(std::move(path)) {}
  /// A new one without a name or memory; its size is only noted.
  [[nodiscard]] static SharedFile make_empty(const std::filesystem::path& path,
                                             std::uint64_t bytes);
  /// Throws ConfigError if the descriptor's file system is not shared memory.
  void look_at_file_system();
  /// Throws ResourceError if there is not so much. The claim may end when it is reserved.
  [[nodiscard]] std::unique_ptr<MemoryClaim> claim_room(std::uint64_t bytes,
                                                        const MachineRoot& machine) const;

  std::filesystem::path path_;
  OwnDescriptor descriptor_;
  std::uint64_t size_bytes_ = 0;
  std::uint64_t page_bytes_ = 0;
  PageKind pages_ = PageKind::kNormal;
};

}  // namespace kvferry::cpu_tier
