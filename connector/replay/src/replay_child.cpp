// SPDX-License-Identifier: Apache-2.0
#include "replay_child.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/recorder/recording.hpp"

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <string_view>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

namespace kvferry::connector {
namespace {

/// The fields of an end, in their order; a refusal is the only one that is told.
enum Field : std::size_t {
  kBooks,
  kRefusal,
  kCalls,
  kEvents,
  kError,
  kPosition,
  kCall,
  kRecorded,
  kReplayed,
  kNumFields
};

void write_all(int to, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(to, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // This process has gone.
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

std::string read_all(int from) {
  std::string bytes;
  std::array<char, 4096> part{};
  for (;;) {
    const ssize_t got = ::read(from, part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return bytes;
    bytes.append(part.data(), static_cast<std::size_t>(got));
  }
}

std::vector<std::string> fields_of(std::string_view bytes) {
  std::vector<std::string> fields;
  std::uint64_t size = 0;
  while (bytes.size() >= sizeof size) {
    std::memcpy(&size, bytes.data(), sizeof size);
    bytes.remove_prefix(sizeof size);
    if (size > bytes.size()) break;
    fields.emplace_back(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  return fields;
}

/// Runs in the child.
[[noreturn]] void replay_and_tell(int to, const std::function<void(ReplayChild::Tell&)>& work) {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  ReplayChild::Tell tell(to);
  try {
    work(tell);
  } catch (const std::exception& error) {
    tell.refusal(error.what());
  }
  ::_exit(0);
}

}  // namespace

void ReplayChild::Tell::field(const std::string& text) const {
  const std::uint64_t size = text.size();
  std::array<char, sizeof size> bytes{};
  std::memcpy(bytes.data(), &size, sizeof size);
  write_all(to_, {bytes.data(), bytes.size()});
  write_all(to_, text);
}

void ReplayChild::Tell::books(const std::string& text) {
  if (!std::exchange(has_books_, true)) field(text);
}

void ReplayChild::Tell::refusal(const std::string& why) {
  books("");
  field(why);
}

void ReplayChild::Tell::end(const ReplayResult& result) {
  books(result.books);
  const Difference none;
  const Difference& at = result.difference ? *result.difference : none;
  for (const std::string& text : {std::string(), std::to_string(result.num_calls),
                                  std::to_string(result.num_events), result.last_error.value_or(""),
                                  std::to_string(at.position), at.call, at.recorded, at.replayed}) {
    field(text);
  }
}

ReplayChild::ReplayChild(const std::function<void(Tell&)>& work) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw ResourceError("a replay cannot open the pipe of its process: " +
                        std::string(std::strerror(errno)));
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    replay_and_tell(ends[1], work);
  }
  const int error = errno;
  ::close(ends[1]);
  if (child > 0) told_ = fields_of(read_all(ends[0]));
  ::close(ends[0]);
  if (child < 0) {
    throw ResourceError("a replay cannot fork its process: " + std::string(std::strerror(error)));
  }
  while (::waitpid(child, &status_, 0) < 0 && errno == EINTR) continue;
}

std::optional<ReplayResult> ReplayChild::result() const {
  if (told_.size() > kRefusal && !told_[kRefusal].empty()) {
    throw recorder::RecordingError(told_[kRefusal]);
  }
  if (told_.size() < kNumFields) return std::nullopt;
  ReplayResult result;
  result.books = told_[kBooks];
  result.num_calls = std::stoull(told_[kCalls]);
  result.num_events = std::stoull(told_[kEvents]);
  if (!told_[kError].empty()) result.last_error = told_[kError];
  if (!told_[kRecorded].empty()) {
    result.difference = {std::stoull(told_[kPosition]), told_[kCall], told_[kRecorded],
                         told_[kReplayed]};
  }
  return result;
}

std::string ReplayChild::books() const { return told_.empty() ? "" : told_[kBooks]; }

std::string ReplayChild::how_it_ended() const {
  if (WIFSIGNALED(status_)) {
    return "the process that replays it was stopped by signal " + std::to_string(WTERMSIG(status_));
  }
  return "the process that replays it ended with " + std::to_string(WEXITSTATUS(status_));
}

}  // namespace kvferry::connector
