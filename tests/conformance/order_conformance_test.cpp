// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <utility>

namespace kvferry::gpu {
namespace {

constexpr std::size_t kNumStreams = 4;
constexpr std::size_t kNumCells = 5;
constexpr std::size_t kCellBytes = 3000;

/// Random operations on several streams, ordered by events wherever two touch the same memory: what
/// they leave is what they leave when they run one after the other.
class OrderConformance : public DeviceTest {
 protected:
  /// Who touched a cell last, by number of the operation.
  struct Users {
    std::optional<std::size_t> writer;
    std::vector<std::size_t> readers;
  };
  struct Done {
    std::size_t stream = 0;
    std::unique_ptr<Event> event;
  };

  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    for (auto& stream : streams_) stream = device().create_stream();
    pool_ = device().allocate(kNumCells * kCellBytes);
    host_ = std::make_unique<HostMemory>(device(), kNumCells * kCellBytes);
    packed_ = device().allocate(kNumCells * kCellBytes);
    for (std::size_t cell = 0; cell < 3 * kNumCells; ++cell) {
      model_[cell] = pattern(kCellBytes, static_cast<std::uint8_t>(cell));
    }
    for (std::size_t cell = 0; cell < kNumCells; ++cell) {
      upload(model_[cell], device_cell(cell));
      upload(model_[2 * kNumCells + cell], packed_->address() + cell * kCellBytes);
      std::memcpy(host_->bytes().data() + cell * kCellBytes, model_[kNumCells + cell].data(),
                  kCellBytes);
    }
  }
  // The device's, before it.
  void TearDown() override {
    done_.clear();
    for (auto& stream : streams_) stream.reset();
    host_.reset();
    pool_.reset();
    packed_.reset();
  }

  [[nodiscard]] std::uintptr_t device_cell(std::size_t cell) const {
    return pool_->address() + cell * kCellBytes;
  }

  [[nodiscard]] BlockGeometry cells() const {
    return make_block_geometry({{pool_->address(), kCellBytes, kCellBytes}}, kNumCells);
  }

  /// Cells 0 to 4 are the device's, 5 to 9 the host's, 10 to 14 packed.
  void submit_random(std::mt19937& random) {
    const std::size_t on = random() % kNumStreams;
    Stream& stream = *streams_[on];
    const std::size_t in_pool = random() % kNumCells;
    const std::size_t in_host = random() % kNumCells;
    const std::size_t in_packed = random() % kNumCells;
    const std::vector<BlockId> block = {BlockId(static_cast<std::uint32_t>(in_pool))};
    const auto geometry = cells();
    const std::uintptr_t host_address = host_->address() + in_host * kCellBytes;
    switch (random() % 5) {
      case 0: {
        const auto value = static_cast<std::uint8_t>(random());
        before(on, {}, in_pool);
        stream.fill(device_cell(in_pool), value, kCellBytes);
        std::fill(model_[in_pool].begin(), model_[in_pool].end(), value);
        break;
      }
      case 1: {
        before(on, in_pool, kNumCells + in_host);
        const CopyRun run = {host_address, device_cell(in_pool), kCellBytes};
        stream.copy(CopyDirection::kDeviceToHost, {&run, 1});
        model_[kNumCells + in_host] = model_[in_pool];
        break;
      }
      case 2: {
        before(on, kNumCells + in_host, in_pool);
        const CopyRun run = {device_cell(in_pool), host_address, kCellBytes};
        stream.copy(CopyDirection::kHostToDevice, {&run, 1});
        model_[in_pool] = model_[kNumCells + in_host];
        break;
      }
      case 3:
        before(on, in_pool, 2 * kNumCells + in_packed);
        stream.gather(geometry, block, packed_->address() + in_packed * kCellBytes);
        model_[2 * kNumCells + in_packed] = model_[in_pool];
        break;
      default:
        before(on, 2 * kNumCells + in_packed, in_pool);
        stream.scatter(geometry, block, packed_->address() + in_packed * kCellBytes);
        model_[in_pool] = model_[2 * kNumCells + in_packed];
        break;
    }
    stream.record(*done_.back().event);
  }

  /// Waits on stream `on` for what the next operation must come behind, and notes the operation.
  void before(std::size_t on, std::optional<std::size_t> read, std::size_t written) {
    const auto wait_for = [&](std::size_t operation) {
      if (done_[operation].stream != on) streams_[on]->wait(*done_[operation].event);
    };
    const std::size_t number = done_.size();
    if (read) {
      if (users_[*read].writer) wait_for(*users_[*read].writer);
      users_[*read].readers.push_back(number);
    }
    Users& users = users_[written];
    if (users.writer) wait_for(*users.writer);
    for (const std::size_t reader : users.readers) {
      if (reader != number) wait_for(reader);
    }
    users = {number, {}};
    done_.push_back({on, device().create_event()});
  }

  std::array<std::unique_ptr<Stream>, kNumStreams> streams_;
  std::unique_ptr<DeviceBuffer> pool_;
  std::unique_ptr<HostMemory> host_;
  std::unique_ptr<DeviceBuffer> packed_;
  std::map<std::size_t, std::vector<std::uint8_t>> model_;
  std::map<std::size_t, Users> users_;
  std::vector<Done> done_;
};
KVFERRY_INSTANTIATE_CONFORMANCE(OrderConformance);

TEST_P(OrderConformance, RandomWorkOrderedByEventsLeavesWhatItLeavesInSequence) {
  std::mt19937 random(1);
  device().prepare(cells());
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    // One stream is late, so that who does not wait for it is found out.
    Hold hold(under_test(), *streams_[random() % kNumStreams]);
    for (int i = 0; i < 40; ++i) submit_random(random);
    hold.release();
    for (const auto& stream : streams_) ASSERT_TRUE(stream->synchronize(kHang));
    for (const Done& done : done_) ASSERT_EQ(done.event->query(), EventState::kDone);
    for (std::size_t cell = 0; cell < kNumCells; ++cell) {
      SCOPED_TRACE("cell " + std::to_string(cell));
      ASSERT_TRUE(download(device_cell(cell), kCellBytes) == model_[cell]);
      ASSERT_TRUE(std::memcmp(host_->bytes().data() + cell * kCellBytes,
                              model_[kNumCells + cell].data(), kCellBytes) == 0);
      ASSERT_TRUE(download(packed_->address() + cell * kCellBytes, kCellBytes) ==
                  model_[2 * kNumCells + cell]);
    }
    users_.clear();
    done_.clear();
  }
}

// docs/ARCHITECTURE.md, load, the fence: a block that was gathered and zeroed a moment ago can be
// loaded into at once.
TEST_P(OrderConformance, ABlockIsGatheredZeroedAndLoadedIntoInTurn) {
  const auto geometry = cells();
  const std::vector<BlockId> block = {BlockId(2)};
  HostMemory stored(device(), kCellBytes);
  Stream& engine = *streams_[0];
  Stream& stores = *streams_[1];
  Stream& loads = *streams_[2];
  const auto gathered = device().create_event();
  const auto fence = device().create_event();
  const auto loaded = device().create_event();
  const CopyRun load = {device_cell(2), host_->address(), kCellBytes};
  const CopyRun store = {stored.address(), packed_->address(), kCellBytes};

  device().prepare(geometry);
  Hold hold(under_test(), engine);
  engine.gather(geometry, block, packed_->address());
  engine.record(*gathered);
  engine.fill(device_cell(2), 0, kCellBytes);
  engine.record(*fence);
  stores.wait(*gathered);
  stores.copy(CopyDirection::kDeviceToHost, {&store, 1});
  loads.wait(*fence);
  loads.copy(CopyDirection::kHostToDevice, {&load, 1});
  loads.record(*loaded);
  EXPECT_EQ(loaded->wait(kMoment), EventState::kPending);
  hold.release();

  ASSERT_TRUE(stores.synchronize(kHang));
  ASSERT_EQ(loaded->wait(kHang), EventState::kDone);
  EXPECT_TRUE(stored.contents() == model_[2]) << "the block as it was gathered";
  EXPECT_TRUE(download(device_cell(2), kCellBytes) == model_[kNumCells]) << "the block as loaded";
}

TEST_P(OrderConformance, AWaitHoldsThroughAChainOfStreams) {
  std::vector<std::unique_ptr<Event>> events;
  for (std::size_t i = 0; i < kNumStreams; ++i) events.push_back(device().create_event());
  Hold hold(under_test(), *streams_[0]);
  streams_[0]->record(*events[0]);
  for (std::size_t i = 1; i < kNumStreams; ++i) {
    streams_[i]->wait(*events[i - 1]);
    streams_[i]->record(*events[i]);
  }
  EXPECT_EQ(events.back()->wait(kMoment), EventState::kPending);
  hold.release();
  EXPECT_EQ(events.back()->wait(kHang), EventState::kDone);
  for (const auto& event : events) EXPECT_EQ(event->query(), EventState::kDone);
}

TEST_P(OrderConformance, AStreamMayWaitForItself) {
  const auto event = device().create_event();
  streams_[0]->record(*event);
  streams_[0]->wait(*event);
  streams_[0]->record(*event);
  EXPECT_EQ(event->wait(kHang), EventState::kDone);
}

}  // namespace
}  // namespace kvferry::gpu
