// SPDX-License-Identifier: Apache-2.0
#include "fake_core.hpp"

#include <cstdlib>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

namespace kvferry::fakes {

FakeCore::FakeCore(int version, std::uintptr_t alias) : first_version_(version), alias_(alias) {
  reset();
}

// What a lost device left behind goes too.
void FakeCore::reset() {
  std::map<std::uintptr_t, std::shared_ptr<FakeStream>> streams;
  std::list<std::shared_ptr<FakeStream>> destroyed;
  {
    MutexLock lock(mutex_);
    streams.swap(streams_);
    destroyed.swap(destroyed_);
  }
  streams.clear();
  destroyed.clear();
  free_all();
  MutexLock lock(mutex_);
  events_.clear();
  adopted_.clear();
  registrations_.clear();
  modules_.clear();
  version_ = first_version_;
  architecture_ = "gfx90a";
  lost_ = 0;
  capturing_ = 0;
  hidden_.clear();
  failures_.clear();
  injector_.reset();
  calls_.clear();
  delay_ = std::chrono::nanoseconds(0);
  last_batch_runs_ = 0;
  last_source_order_ = 0;
  read_faults();
}

void FakeCore::read_faults() {
  const char* const asked = std::getenv(kFakeFaultsVariable);  // NOLINT(concurrency-mt-unsafe)
  std::istringstream faults(asked == nullptr ? "" : asked);
  for (std::string one; std::getline(faults, one, ';');) {
    std::istringstream words(one);
    std::string function;
    std::uint64_t nth = 0;
    std::string kind;
    int code = kOk;
    words >> function >> nth >> kind >> code;
    FakeFault fault{FakeFault::Kind::kFail, code};
    if (kind == "lose") fault.kind = FakeFault::Kind::kLose;
    if (kind == "hang") fault.kind = FakeFault::Kind::kHang;
    if (kind == "skip") fault.kind = FakeFault::Kind::kSkip;
    failures_[function] = {nth, fault};
  }
}

void FakeCore::set_version(int version) {
  MutexLock lock(mutex_);
  version_ = version;
}

void FakeCore::set_architecture(const std::string& architecture) {
  MutexLock lock(mutex_);
  architecture_ = architecture;
}

void FakeCore::hide(const std::string& function) {
  MutexLock lock(mutex_);
  hidden_.insert(function);
}

void FakeCore::fail_nth(const std::string& function, std::uint64_t nth, int code) {
  MutexLock lock(mutex_);
  failures_[function] = {nth, {FakeFault::Kind::kFail, code}};
}

void FakeCore::lose(int code) {
  MutexLock lock(mutex_);
  lost_ = code;
}

void FakeCore::go_down_at_exit() {
  static FakeCore* core = nullptr;
  core = this;
  std::atexit([] { core->go_down(); });
}

void FakeCore::go_down() {
  MutexLock lock(mutex_);
  lost_ = kDeinitialized;
  for (const auto& [handle, stream] : streams_) stream->drop();
}

// Where ranges overlap, the earlier one was freed and its memory given out anew.
void FakeCore::adopt(std::uintptr_t address, std::size_t bytes) {
  disown(address, bytes);
  MutexLock lock(mutex_);
  adopted_[address] = bytes;
}

void FakeCore::disown(std::uintptr_t address, std::size_t bytes) {
  MutexLock lock(mutex_);
  auto at = adopted_.lower_bound(address);
  if (at != adopted_.begin() && std::prev(at)->first + std::prev(at)->second > address) --at;
  while (at != adopted_.end() && at->first < address + bytes) at = adopted_.erase(at);
}

void FakeCore::settle() {
  const auto point = std::make_shared<FakePoint>();
  if (submit(0, [point] { point->reach(); }) == kOk) point->wait();
}

void FakeCore::hold(bool held) {
  MutexLock lock(mutex_);
  for (const auto& [handle, stream] : streams_) stream->hold(held);
}

void FakeCore::inject(const gpu::InjectionOptions& options, std::uint64_t seed) {
  auto injector = std::make_shared<gpu::Injector>(options, seed);
  MutexLock lock(mutex_);
  injector_ = std::move(injector);
}

std::vector<gpu::InjectionEvent> FakeCore::take_injections() {
  const auto injecting = injector();
  return injecting == nullptr ? std::vector<gpu::InjectionEvent>() : injecting->take();
}

std::shared_ptr<gpu::Injector> FakeCore::injector() const {
  MutexLock lock(mutex_);
  return injector_;
}

void FakeCore::set_capturing(std::uintptr_t stream) {
  MutexLock lock(mutex_);
  capturing_ = stream;
}

std::uint64_t FakeCore::num_calls(const std::string& function) const {
  MutexLock lock(mutex_);
  const auto found = calls_.find(function);
  return found == calls_.end() ? 0 : found->second;
}

std::uint64_t FakeCore::num_alive() const {
  MutexLock lock(mutex_);
  return streams_.size() + events_.size() + allocations_.size() + registrations_.size() +
         modules_.size();
}

std::vector<int> FakeCore::stream_priorities() const {
  std::vector<int> priorities;
  MutexLock lock(mutex_);
  for (const auto& [handle, stream] : streams_) priorities.push_back(stream->priority());
  return priorities;
}

int FakeCore::thread_context() const { return context(); }
int FakeCore::thread_capture_mode() const { return capture_mode(); }

int FakeCore::enter(const char* function) {
  FakeFault fault;
  {
    MutexLock lock(mutex_);
    ++calls_[function];
    if (lost_ != 0) return lost_;
    const auto failure = failures_.find(function);
    if (failure == failures_.end() || --failure->second.calls_left > 0) return kOk;
    fault = failure->second.fault;
    failures_.erase(failure);
    if (fault.kind == FakeFault::Kind::kLose) lost_ = fault.code;
  }
  while (fault.kind == FakeFault::Kind::kHang) std::this_thread::sleep_for(std::chrono::hours(1));
  return fault.kind == FakeFault::Kind::kSkip ? kSkipped : fault.code;
}

int FakeCore::version() const {
  MutexLock lock(mutex_);
  return version_;
}

std::string FakeCore::architecture() const {
  MutexLock lock(mutex_);
  return architecture_;
}

bool FakeCore::hidden(const std::string& function) const {
  MutexLock lock(mutex_);
  return hidden_.count(function) != 0;
}

bool FakeCore::capturing(std::uintptr_t stream) const {
  MutexLock lock(mutex_);
  return capturing_ != 0 && capturing_ == stream;
}

void FakeCore::note_batch(std::uint64_t num_runs, int source_order) {
  last_batch_runs_ = num_runs;
  last_source_order_ = source_order;
}

int& FakeCore::context() {
  thread_local int current = 0;
  return current;
}

int& FakeCore::capture_mode() {
  thread_local int mode = 0;
  return mode;
}

std::uintptr_t FakeCore::create_stream(int device, int priority) {
  auto created = std::make_shared<FakeStream>(device, priority);
  MutexLock lock(mutex_);
  const std::uintptr_t handle = next_handle();
  streams_.emplace(handle, std::move(created));
  return handle;
}

// The call returns at once and the work goes on, as CUDA's does: who wants it to have ended waits.
int FakeCore::destroy_stream(std::uintptr_t stream) {
  std::list<std::shared_ptr<FakeStream>> ended;
  MutexLock lock(mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return kInvalidHandle;
  destroyed_.push_back(std::move(found->second));
  streams_.erase(found);
  for (auto at = destroyed_.begin(); at != destroyed_.end();) {
    const auto next = std::next(at);
    if ((*at)->idle()) ended.splice(ended.end(), destroyed_, at);
    at = next;
  }
  return kOk;
}

int FakeCore::stream_device(std::uintptr_t handle, int otherwise) {
  const auto found = stream(handle);
  return found == nullptr || is_legacy(handle) ? otherwise : found->device();
}

void FakeCore::drain() {
  std::vector<std::shared_ptr<FakeStream>> all;
  {
    MutexLock lock(mutex_);
    for (const auto& [handle, stream] : streams_) all.push_back(stream);
    all.insert(all.end(), destroyed_.begin(), destroyed_.end());
    if (legacy_ != nullptr) all.push_back(legacy_);
  }
  for (const auto& stream : all) stream->drain();
}

int FakeCore::query_stream(std::uintptr_t handle) {
  const auto found = stream(handle);
  if (found == nullptr) return kInvalidHandle;
  return found->idle() ? kOk : kNotReady;
}

int FakeCore::submit(std::uintptr_t handle, std::function<void()> work) {
  const auto found = stream(handle);
  if (found == nullptr) return kInvalidHandle;
  const std::chrono::nanoseconds delay = delay_;
  if (delay.count() == 0) {
    found->submit(std::move(work));
  } else {
    found->submit([delay, work = std::move(work)] {
      std::this_thread::sleep_for(delay);
      work();
    });
  }
  return kOk;
}

std::uintptr_t FakeCore::create_event() {
  MutexLock lock(mutex_);
  const std::uintptr_t handle = next_handle();
  events_.emplace(handle, nullptr);
  return handle;
}

int FakeCore::destroy_event(std::uintptr_t event) {
  MutexLock lock(mutex_);
  return events_.erase(event) == 1 ? kOk : kInvalidHandle;
}

int FakeCore::record_event(std::uintptr_t event, std::uintptr_t stream) {
  auto point = std::make_shared<FakePoint>();
  {
    MutexLock lock(mutex_);
    const auto found = events_.find(event);
    if (found == events_.end()) return kInvalidHandle;
    found->second = point;
  }
  return submit(stream, [point] { point->reach(); });
}

int FakeCore::query_event(std::uintptr_t event) {
  MutexLock lock(mutex_);
  const auto found = events_.find(event);
  if (found == events_.end()) return kInvalidHandle;
  return found->second == nullptr || found->second->reached() ? kOk : kNotReady;
}

int FakeCore::wait_event(std::uintptr_t stream, std::uintptr_t event) {
  std::shared_ptr<FakePoint> point;
  {
    MutexLock lock(mutex_);
    const auto found = events_.find(event);
    if (found == events_.end()) return kInvalidHandle;
    point = found->second;
  }
  if (point == nullptr) return kOk;
  return submit(stream, [point] { point->wait(); });
}

int FakeCore::elapsed(float* milliseconds, std::uintptr_t from, std::uintptr_t to) {
  MutexLock lock(mutex_);
  const auto begin = events_.find(from);
  const auto end = events_.find(to);
  if (begin == events_.end() || end == events_.end()) return kInvalidHandle;
  if (begin->second == nullptr || end->second == nullptr) return kInvalidHandle;
  if (!begin->second->reached() || !end->second->reached()) return kNotReady;
  const std::chrono::duration<float, std::milli> span = end->second->when() - begin->second->when();
  *milliseconds = span.count();
  return kOk;
}

// The default stream is made at its first use and never ends.
std::shared_ptr<FakeStream> FakeCore::stream(std::uintptr_t handle) {
  MutexLock lock(mutex_);
  if (is_legacy(handle)) {
    if (legacy_ == nullptr) legacy_ = std::make_shared<FakeStream>(0, 0);
    return legacy_;
  }
  const auto found = streams_.find(handle);
  return found == streams_.end() ? nullptr : found->second;
}

}  // namespace kvferry::fakes
