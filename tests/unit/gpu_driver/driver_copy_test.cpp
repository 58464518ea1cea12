// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_api.hpp"
#include "driver/driver_device.hpp"
#include "driver/driver_scope.hpp"
#include "driver_test.hpp"
#include "kernels/code_objects.hpp"

namespace kvferry::gpu {
namespace {

constexpr std::uint64_t kBytes = 64;
/// In DriverStream's terms: a legacy default stream by each of its names.
constexpr std::uintptr_t kLegacy[] = {0, 1};

class DriverCopy : public DriverTest {};
KVFERRY_INSTANTIATE_VENDORS(DriverCopy);

TEST_P(DriverCopy, OneBatchCallTakesTheLargestBatch) {
  const auto buffer = device().allocate(kMaxBatchRuns);
  PinnedMemory host(device(), kMaxBatchRuns);
  const auto stream = device().create_stream();
  std::vector<CopyRun> runs;
  for (std::size_t i = 0; i < kMaxBatchRuns; ++i) {
    runs.push_back({host.address() + i, buffer->address() + i, 1});
  }
  stream->fill(buffer->address(), 5, kMaxBatchRuns);
  stream->copy(CopyDirection::kDeviceToHost, runs, CopyCall::kBatch);
  ASSERT_TRUE(stream->synchronize(kHang));
  EXPECT_TRUE(host.all(5));
  EXPECT_EQ(control().num_calls(vendor().batch), 1U);
  EXPECT_EQ(control().last_batch_runs(), kMaxBatchRuns);
}

TEST_P(DriverCopy, AdoptedMemoryTakesThePlaceOfWhatWasAdoptedThere) {
  std::vector<std::uint8_t> memory(4 * kBytes);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  control().adopt(address + kBytes / 2, kBytes);
  control().adopt(address + 2 * kBytes, kBytes / 2);
  control().adopt(address + kBytes, memory.size() - kBytes);
  const auto stream = device().create_stream();
  stream->fill(address + kBytes, 3, memory.size() - kBytes);
  ASSERT_TRUE(stream->synchronize(kHang));
  EXPECT_EQ(std::count(memory.begin(), memory.end(), 3), 3 * kBytes);
  EXPECT_THROW(stream->fill(address + kBytes / 2, 3, 1), DeviceError) << "freed";
}

TEST_P(DriverCopy, OneCallPerRunIsTakenWhenAskedFor) {
  const auto buffer = device().allocate(kBytes);
  PinnedMemory host(device(), kBytes);
  const auto stream = device().create_stream();
  stream->copy(CopyDirection::kDeviceToHost, quarters(host, *buffer), CopyCall::kPerRun);
  EXPECT_EQ(control().num_calls(vendor().batch), 0U);
  EXPECT_EQ(control().num_calls(vendor().store), 4U);
}

TEST_P(DriverCopy, ByDefaultOneRunIsACallAndSeveralAreABatchOnCuda) {
  const auto buffer = device().allocate(kBytes);
  PinnedMemory host(device(), kBytes);
  const auto stream = device().create_stream();
  const auto runs = quarters(host, *buffer);
  stream->copy(CopyDirection::kDeviceToHost, std::span(runs).first(1));
  EXPECT_EQ(control().num_calls(vendor().batch), 0U);
  stream->copy(CopyDirection::kDeviceToHost, runs);
  // rocm-systems#11662: on HIP only if asked for.
  EXPECT_EQ(control().num_calls(vendor().batch), vendor().name == "hip" ? 0U : 1U);
  EXPECT_EQ(control().num_calls(vendor().store), vendor().name == "hip" ? 5U : 1U);
}

TEST_P(DriverCopy, TraitsSayWhatTheDriverAndTheBuildHave) {
  EXPECT_EQ(device().traits().family,
            vendor().name == "cuda" ? DeviceFamily::kCuda90 : DeviceFamily::kHip);
  EXPECT_EQ(device().traits().max_batch_runs, kMaxBatchRuns);
  EXPECT_EQ(device().traits().batches_by_default, vendor().name == "cuda");
  EXPECT_TRUE(device().traits().has_pack_kernels);
}

TEST_P(DriverCopy, LegacyDefaultStreamGetsOneCallPerRun) {
  const auto buffer = device().allocate(kBytes);
  PinnedMemory host(device(), kBytes);
  for (const std::uintptr_t legacy : kLegacy) {
    const auto view = device().view_stream(legacy);
    view->fill(buffer->address(), 7, kBytes);
    view->copy(CopyDirection::kDeviceToHost, quarters(host, *buffer), CopyCall::kBatch);
    ASSERT_TRUE(view->synchronize(kHang));
    EXPECT_TRUE(host.all(7));
  }
  EXPECT_EQ(control().num_calls(vendor().batch), 0U);
}

TEST_P(DriverCopy, BatchThatIsNotSupportedBecomesSingleCalls) {
  const auto buffer = device().allocate(kBytes);
  PinnedMemory host(device(), kBytes);
  const auto stream = device().create_stream();
  control().fail_nth(vendor().batch, 1, kUnsupported);
  stream->fill(buffer->address(), 3, kBytes);
  stream->copy(CopyDirection::kDeviceToHost, quarters(host, *buffer), CopyCall::kBatch);
  ASSERT_TRUE(stream->synchronize(kHang));
  EXPECT_TRUE(host.all(3));
  stream->copy(CopyDirection::kDeviceToHost, quarters(host, *buffer), CopyCall::kBatch);
  EXPECT_EQ(control().num_calls(vendor().batch), 1U) << "the stream is not asked again";
}

TEST_P(DriverCopy, FailedBatchIsInDoubtSoTheNextRecordFails) {
  const auto buffer = device().allocate(kBytes);
  PinnedMemory host(device(), kBytes);
  const auto stream = device().create_stream();
  const auto event = device().create_event();
  control().fail_nth(vendor().batch, 1, kInvalid);
  EXPECT_NO_THROW(
      stream->copy(CopyDirection::kDeviceToHost, quarters(host, *buffer), CopyCall::kBatch));
  stream->record(*event);
  EXPECT_EQ(event->wait(kHang), EventState::kFailed);
}

TEST_P(DriverCopy, SourcesOfStoresAreReadInStreamOrder) {
  if (vendor().name == "hip") control().set_version(71'300'000);
  open();
  const auto buffer = device().allocate(kBytes);
  PinnedMemory host(device(), kBytes);
  const auto stream = device().create_stream();
  stream->copy(CopyDirection::kDeviceToHost, quarters(host, *buffer), CopyCall::kBatch);
  EXPECT_EQ(control().last_source_order(), 1);
  stream->copy(CopyDirection::kHostToDevice, reversed(quarters(host, *buffer)), CopyCall::kBatch);
  EXPECT_EQ(control().last_source_order(), 3);
}

TEST_P(DriverCopy, BatchesOfOlderDriversLookOtherwise) {
  if (vendor().name == "cuda") {
    // As a build with an older toolkit would.
    control().set_version(12080);
    use(std::make_unique<DriverDevice>(
        std::make_unique<CudaApi>(CudaLibrary(vendor().library, 12040), 0), DriverOptions{}));
  }
  const auto buffer = device().allocate(kBytes);
  PinnedMemory host(device(), kBytes);
  const auto stream = device().create_stream();
  stream->fill(buffer->address(), 4, kBytes);
  stream->copy(CopyDirection::kDeviceToHost, quarters(host, *buffer), CopyCall::kBatch);
  ASSERT_TRUE(stream->synchronize(kHang));
  EXPECT_TRUE(host.all(4));
  EXPECT_EQ(control().num_calls(vendor().batch), 1U);
  EXPECT_EQ(control().last_source_order(), vendor().name == "cuda" ? 1 : 0)
      << "HIP takes no attributes before 7.13";
}

TEST_P(DriverCopy, DriverWithoutBatchCallCopiesOneByOne) {
  if (vendor().name == "cuda") control().hide(vendor().batch);
  if (vendor().name == "hip") control().set_version(60'400'000);
  open();
  EXPECT_NE(device().description().find("no batch call"), std::string::npos);
  EXPECT_EQ(device().traits().max_batch_runs, 0U);
  const auto buffer = device().allocate(kBytes);
  PinnedMemory host(device(), kBytes);
  const auto stream = device().create_stream();
  stream->copy(CopyDirection::kDeviceToHost, quarters(host, *buffer), CopyCall::kBatch);
  EXPECT_EQ(control().num_calls(vendor().store), 4U);
}

// A bulk copy of registered memory is unproven over PCIe.
TEST_P(DriverCopy, BulkKernelsTouchDeviceMemoryOnly) {
  constexpr std::uint64_t kBlock = 4096;
  const auto pool = device().allocate(4 * kBlock);
  const auto packed = device().allocate(kBlock);
  PinnedMemory host(device(), kBlock);
  const auto geometry = make_block_geometry({{pool->address(), kBlock, kBlock}}, 4);
  const std::vector<BlockId> blocks{BlockId(2)};
  const auto stream = device().create_stream();
  stream->scatter(geometry, blocks, host.address());
  EXPECT_TRUE(stream->synchronize(kHang));
  EXPECT_EQ(control().num_calls("kvferry_scatter"), 1U);
  EXPECT_EQ(control().num_calls("kvferry_scatter_bulk"), 0U);
  stream->scatter(geometry, blocks, packed->address());
  EXPECT_TRUE(stream->synchronize(kHang));
  EXPECT_EQ(control().num_calls("kvferry_scatter_bulk"), vendor().name == "cuda" ? 1U : 0U);
}

TEST_P(DriverCopy, PciAddressIsAsSysfsWritesIt) {
  EXPECT_EQ(device().pci_address(), "0000:c1:00.0");
}

// LMCache#5067
TEST_P(DriverCopy, AStreamHasTheGreatestPriorityOnlyIfItAsksForIt) {
  const auto normal = device().create_stream();
  const auto high = device().create_stream(StreamPriority::kHigh);
  const int greatest = vendor().name == "cuda" ? -5 : -1;
  EXPECT_EQ(control().stream_priorities(), (std::vector<int>{0, greatest}));
}

TEST_P(DriverCopy, AStreamWhosePriorityCannotBeHadIsRefused) {
  control().fail_nth(
      vendor().name == "cuda" ? "cuCtxGetStreamPriorityRange" : "hipDeviceGetStreamPriorityRange",
      1, kInvalid);
  EXPECT_THROW(std::ignore = device().create_stream(StreamPriority::kHigh), DeviceError);
  EXPECT_TRUE(control().stream_priorities().empty());
}

TEST_P(DriverCopy, KernelIsAllowedTheSharedMemoryOfALargerRequest) {
  if (vendor().name != "cuda") return;  // HIP asks for no permission.
  auto& context = dynamic_cast<DriverDevice&>(device()).context();
  auto& kernels = context.pack().kernels();
  const DriverScope scope(context);
  std::ignore = kernels.function("kvferry_gather_bulk", 1U << 10U);
  EXPECT_EQ(control().num_calls("cuFuncSetAttribute"), 0U);
  control().fail_nth("cuFuncSetAttribute", 1, kInvalid);
  EXPECT_THROW(std::ignore = kernels.function("kvferry_gather_bulk", 64U << 10U), DeviceError);
  std::ignore = kernels.function("kvferry_gather_bulk", 64U << 10U);
  EXPECT_EQ(control().num_calls("cuFuncSetAttribute"), 2U);
  std::ignore = kernels.function("kvferry_gather_bulk", 64U << 10U);
  std::ignore = kernels.function("kvferry_gather_bulk", 1U << 10U);
  EXPECT_EQ(control().num_calls("cuFuncSetAttribute"), 2U) << "a smaller request needs nothing";
}

TEST_P(DriverCopy, GatherOfManyBlocksIsSeveralLaunchesAndOneTable) {
  constexpr std::uint32_t kNumBlocks = 2000;
  const auto pool = device().allocate(kNumBlocks * 16);
  const auto packed = device().allocate(kNumBlocks * 16);
  PinnedMemory host(device(), kNumBlocks * 16);
  const auto stream = device().create_stream();
  const auto geometry = make_block_geometry({{pool->address(), 16, 16}}, kNumBlocks);
  std::vector<BlockId> blocks;
  for (std::uint32_t i = 0; i < kNumBlocks; ++i) blocks.emplace_back(i);
  stream->fill(pool->address(), 6, kNumBlocks * 16);
  const std::uint64_t num_allocated = control().num_calls(vendor().allocate);
  stream->gather(geometry, blocks, packed->address());
  EXPECT_EQ(control().num_calls(vendor().launch), 3U);
  stream->gather(geometry, blocks, packed->address());
  EXPECT_EQ(control().num_calls(vendor().allocate), num_allocated + 1);
  const CopyRun run{host.address(), packed->address(), kNumBlocks * 16};
  stream->copy(CopyDirection::kDeviceToHost, {&run, 1});
  ASSERT_TRUE(stream->synchronize(kHang));
  EXPECT_TRUE(host.all(6));
}

TEST_P(DriverCopy, FirstPackOfAPreparedGeometryOnlyLaunches) {
  const auto pool = device().allocate(64 * 16);
  const auto packed = device().allocate(64 * 16);
  const auto stream = device().create_stream();
  const auto geometry = make_block_geometry({{pool->address(), 16, 16}}, 64);
  const std::vector<BlockId> blocks = {BlockId(3), BlockId(1)};
  device().prepare(geometry);
  const auto count = [&] {
    return control().num_calls(vendor().allocate) + control().num_calls(vendor().load) +
           control().num_calls(vendor().function);
  };
  const std::uint64_t num_before = count();
  stream->gather(geometry, blocks, packed->address());
  stream->scatter(geometry, blocks, packed->address() + 1);
  stream->scatter(geometry, blocks, packed->address());
  EXPECT_EQ(count(), num_before);
  EXPECT_EQ(control().num_calls(vendor().launch), 3U);
  device().prepare(geometry);
  EXPECT_EQ(count(), num_before) << "once is enough";
}

TEST_P(DriverCopy, AForgottenGeometryTakesNoDeviceMemoryAndMayComeBack) {
  const auto geometry = make_block_geometry({{4096, 16, 16}}, 64);
  const auto other = make_block_geometry({{8192, 16, 16}}, 64);
  const auto free_bytes = [&] { return device().memory_info().free_bytes; };
  const std::uint64_t before = free_bytes();
  device().prepare(other);
  const std::uint64_t with_other = free_bytes();
  for (int i = 0; i < 3; ++i) {
    device().prepare(geometry);
    EXPECT_LT(free_bytes(), with_other);
    device().forget(geometry);
    device().forget(geometry);
    EXPECT_EQ(free_bytes(), with_other) << "the other one stays";
  }
  device().forget(other);
  EXPECT_EQ(free_bytes(), before);
}

TEST_P(DriverCopy, PrepareThatCannotFindAKernelThrows) {
  control().fail_nth(vendor().function, 1, kInvalid);
  const auto geometry = make_block_geometry({{4096, 16, 16}}, 64);
  EXPECT_THROW(device().prepare(geometry), DeviceError);
}

TEST_P(DriverCopy, RefusedLaunchThrowsAndOneRefusedHalfWayFailsTheRecord) {
  constexpr std::uint32_t kNumBlocks = 1000;
  const auto pool = device().allocate(kNumBlocks * 16);
  const auto packed = device().allocate(kNumBlocks * 16);
  const auto stream = device().create_stream();
  const auto event = device().create_event();
  const auto geometry = make_block_geometry({{pool->address(), 16, 16}}, kNumBlocks);
  const std::vector<BlockId> blocks(kNumBlocks, BlockId(1));
  control().fail_nth(vendor().launch, 1, kInvalid);
  EXPECT_THROW(stream->gather(geometry, blocks, packed->address()), DeviceError);
  control().fail_nth(vendor().launch, 2, kInvalid);
  EXPECT_NO_THROW(stream->gather(geometry, blocks, packed->address()));
  stream->record(*event);
  EXPECT_EQ(event->wait(kHang), EventState::kFailed);
}

TEST_P(DriverCopy, KernelsForAnUnknownArchitectureAreCompiledAtRunTime) {
  if (vendor().name == "cuda") GTEST_SKIP() << "the image has PTX";
  if (pack_kernel_source().empty()) GTEST_SKIP() << "the build has no source of the kernels";
  control().set_architecture("gfx999");
  use(vendor().make(0, {.library = vendor().library}));
  const auto pool = device().allocate(64);
  const auto stream = device().create_stream();
  const auto geometry = make_block_geometry({{pool->address(), 16, 16}}, 2);
  const std::vector<BlockId> blocks = {BlockId(1)};
  control().fail_nth("hiprtcCompileProgram", 1, 6);
  try {
    stream->gather(geometry, blocks, pool->address() + 32);
    FAIL();
  } catch (const DeviceError& error) {
    const std::string why = error.what();
    EXPECT_NE(why.find("gfx999"), std::string::npos) << why;
    EXPECT_NE(why.find("no such processor;"), std::string::npos) << why;
  }
  stream->gather(geometry, blocks, pool->address() + 32);
  stream->gather(geometry, blocks, pool->address() + 32);
  EXPECT_TRUE(stream->synchronize(kHang));
  EXPECT_EQ(control().num_calls("hiprtcCompileProgram"), 2U);
}

}  // namespace
}  // namespace kvferry::gpu
