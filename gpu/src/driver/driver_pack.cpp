// SPDX-License-Identifier: Apache-2.0
#include "driver/driver_pack.hpp"

#include "driver/driver_context.hpp"
#include "driver/driver_scope.hpp"
#include "driver/poll_until.hpp"
#include "kernels/pack_launch.hpp"

#include <algorithm>
#include <iterator>

namespace kvferry::gpu {
namespace {

// A table is a few KiB. If it does not arrive within this time, the device hangs.
constexpr std::chrono::seconds kUploadBound{30};

bool same(const std::vector<Fragment>& a, const std::vector<Fragment>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Fragment& x, const Fragment& y) {
                      return x.base == y.base && x.block_stride_bytes == y.block_stride_bytes &&
                             x.bytes == y.bytes;
                    });
}

}  // namespace

DriverPack::~DriverPack() {
  std::vector<Table> tables;
  {
    MutexLock lock(mutex_);
    tables.swap(tables_);
  }
  free(tables);
}

void DriverPack::free(const std::vector<Table>& tables) {
  if (tables.empty() || context_.lost()) return;
  const DriverScope scope(context_);
  for (const Table& table : tables) static_cast<void>(context_.api().free(table.address));
}

void DriverPack::forget(const BlockGeometry& geometry) {
  std::vector<Table> tables;
  {
    MutexLock lock(mutex_);
    const auto its = std::stable_partition(tables_.begin(), tables_.end(), [&](const Table& table) {
      return !same(table.fragments, geometry.fragments);
    });
    tables.assign(std::make_move_iterator(its), std::make_move_iterator(tables_.end()));
    tables_.erase(its, tables_.end());
  }
  free(tables);
}

PackDevice DriverPack::device() const {
  return {static_cast<std::uint32_t>(context_.api().traits().num_multiprocessors),
          kernels_.bulk_copy()};
}

// Bulk copies of registered host memory work on an H100, but are no faster than the vector kernels,
// and were not seen on other machines. A fault would lose the device permanently.
PackTuning DriverPack::tuning(std::uintptr_t packed) const {
  return {.kernel = context_.device_ranges().has(packed) ? PackKernel::kVector : PackKernel::kAuto};
}

// The kernel depends on the alignment of the packed memory, which a geometry does not tell.
void DriverPack::prepare(const BlockGeometry& geometry) {
  constexpr std::uintptr_t kAligned = 0;
  constexpr std::uintptr_t kOdd = 1;
  const auto find = [&](PackWay way, std::uintptr_t packed, PackSums sums) {
    const PackLaunch plan = plan_pack(geometry, 1, packed, way, device(), {}, sums);
    static_cast<void>(kernels_.function(plan.kernel, plan.shared_bytes));
  };
  for (const PackWay way : {PackWay::kGather, PackWay::kScatter}) {
    find(way, kAligned, PackSums::kNo);
    find(way, kOdd, PackSums::kNo);
    find(way, kAligned, PackSums::kYes);
  }
  find(PackWay::kSum, kAligned, PackSums::kYes);
  static_cast<void>(table(geometry));
}

std::string DriverPack::launch(PackWay way, const BlockGeometry& geometry,
                               std::span<const BlockId> blocks, std::uintptr_t packed,
                               std::uintptr_t sums, StreamHandle stream) {
  const PackSums makes_sums = sums == 0 ? PackSums::kNo : PackSums::kYes;
  const std::uintptr_t fragments = table(geometry);
  bool begun = false;
  while (!blocks.empty()) {
    const auto part = blocks.first(std::min<std::size_t>(blocks.size(), kMaxPackBlocks));
    const PackLaunch plan = plan_pack(geometry, static_cast<std::uint32_t>(part.size()), packed,
                                      way, device(), tuning(packed), makes_sums);
    PackArguments arguments = pack_arguments(geometry, fragments, part, packed, sums);
    const FunctionHandle function = kernels_.function(plan.kernel, plan.shared_bytes);
    const LaunchShape shape{{plan.num_ctas, 1, 1}, {plan.threads_per_cta, 1, 1}, plan.shared_bytes};
    const DriverResult result =
        context_.note(context_.api().launch(function, shape, &arguments, stream), plan.kernel);
    if (!begun) context_.check(result, ("launch " + std::string(plan.kernel)).c_str());
    if (!result.ok())
      return context_.message(result, "launch the rest of a gather, scatter or sum");
    begun = true;
    blocks = blocks.subspan(part.size());
    packed += part.size() * geometry.packed_bytes;
    if (sums != 0) sums += part.size() * sizeof(std::uint64_t);
  }
  return "";
}

std::uintptr_t DriverPack::table(const BlockGeometry& geometry) {
  if (const std::uintptr_t known = find(geometry); known != 0) return known;
  const std::uintptr_t mine = upload(geometry);
  // Another thread may have been faster. In that case both tables stay.
  MutexLock lock(mutex_);
  tables_.push_back({geometry.fragments, mine});
  return mine;
}

std::uintptr_t DriverPack::find(const BlockGeometry& geometry) const {
  MutexLock lock(mutex_);
  for (const Table& table : tables_) {
    if (same(table.fragments, geometry.fragments)) return table.address;
  }
  return 0;
}

// It uses a separate stream: the caller's may be busy for long, and the legacy default stream would
// wait for the engine.
std::uintptr_t DriverPack::upload(const BlockGeometry& geometry) {
  DriverApi& api = context_.api();
  const std::vector<FragmentEntry> entries = fragment_table(geometry);
  const std::uint64_t bytes = entries.size() * sizeof(FragmentEntry);
  const auto stream = api.create_stream(kNormalPriority);
  context_.check(stream.result, "create a stream to upload a geometry");
  const auto memory = api.allocate(bytes);
  DriverResult result = memory.result;
  if (result.ok()) {
    const CopyRun run{memory.value, reinterpret_cast<std::uintptr_t>(entries.data()), bytes};
    result = api.copy(CopyDirection::kHostToDevice, run, stream.value);
    if (result.ok()) {
      static_cast<void>(poll_until(kUploadBound, [&] {
        result = api.query_stream(stream.value);
        return result.status != DriverStatus::kNotReady;
      }));
    }
    if (!result.ok()) static_cast<void>(api.free(memory.value));
  }
  static_cast<void>(api.destroy_stream(stream.value));
  context_.check(result, "upload a geometry to the device");
  return memory.value;
}

}  // namespace kvferry::gpu
