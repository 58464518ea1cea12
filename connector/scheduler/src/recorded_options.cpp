// SPDX-License-Identifier: Apache-2.0
#include "kvferry/connector/scheduler/recorded_options.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/slots/peers.hpp"
#include "kvferry/recorder/recording.hpp"

#include <cstdlib>
#include <functional>
#include <ios>
#include <map>
#include <sstream>
#include <string_view>

namespace kvferry::connector {
namespace {

using recorder::RecordingError;

/// The values of a line, from the first on.
class Values {
 public:
  Values(std::string_view name, const std::string& line) : name_(name), from_(line) {
    std::string skipped;
    from_ >> skipped;
  }

  [[nodiscard]] std::string text() {
    std::string word;
    if (!(from_ >> word)) refuse();
    return word;
  }
  template <class T = std::uint64_t>
  [[nodiscard]] T number() {
    std::uint64_t value = 0;
    if (!(from_ >> value) || static_cast<std::uint64_t>(static_cast<T>(value)) != value) refuse();
    return static_cast<T>(value);
  }
  template <class E>
  [[nodiscard]] E choice(std::uint64_t num_choices) {
    const std::uint64_t value = number();
    if (value >= num_choices) refuse();
    return static_cast<E>(value);
  }
  /// Written so that the same bits come back.
  [[nodiscard]] float fraction() { return std::strtof(text().c_str(), nullptr); }
  [[nodiscard]] std::chrono::nanoseconds time() {
    return std::chrono::nanoseconds(number<std::int64_t>());
  }
  [[nodiscard]] bool has_more() { return (from_ >> std::ws).good(); }

 private:
  [[noreturn]] void refuse() const {
    throw RecordingError("a recording's configuration has a line '" + from_.str() + "' that no " +
                         name_ + " has; was it made by another version of kvferry?");
  }

  std::string name_;
  std::istringstream from_;
};

/// How a line changes options.
using Reader = void (*)(SchedulerOptions& options, Values& values);

const std::map<std::string, Reader, std::less<>>& readers() {
  using Options = SchedulerOptions;
  static const std::map<std::string, Reader, std::less<>> kAll{
      {"rank",
       [](Options&, Values&) {
         throw RecordingError(
             "the recording is that of a rank, which decides nothing, so it cannot be replayed; it "
             "can be read. Replay the recording of the rank's engine");
       }},
      {"domain", [](Options& to, Values& of) { to.domain = DomainId(of.number<std::uint32_t>()); }},
      {"world_size", [](Options& to, Values& of) { to.world_size = of.number<std::uint32_t>(); }},
      {"hash_tokens", [](Options& to, Values& of) { to.hash_tokens = of.number<std::uint32_t>(); }},
      {"num_blocks", [](Options& to, Values& of) { to.num_blocks = of.number<std::uint32_t>(); }},
      {"class",
       [](Options& to, Values& of) {
         SlabClass one{of.number<std::uint32_t>(), {}};
         while (of.has_more()) one.slot_bytes.push_back(of.number());
         to.classes.push_back(std::move(one));
       }},
      {"replica",
       [](Options& to, Values& of) {
         const auto size = of.number<std::uint32_t>();
         to.replicas.push_back({size, of.number<std::uint32_t>()});
       }},
      {"max_chunks", [](Options& to, Values& of) { to.max_chunks = of.number<std::uint32_t>(); }},
      {"shared_tier",
       [](Options& to, Values& of) {
         if (of.number() != 0) to.replayed_peers = cpu_tier::no_peers;
       }},
      {"tier",
       [](Options& to, Values& of) {
         to.tier.eviction = of.choice<cpu_tier::Eviction>(cpu_tier::kEvictions.size());
         to.tier.admission = of.choice<cpu_tier::Admission>(cpu_tier::kAdmissionNames.size());
         to.tier.max_awaited_share = of.fraction();
         to.tier.max_promised_share = of.fraction();
         to.tier.key_events = of.number() != 0;
       }},
      {"group",
       [](Options& to, Values& of) {
         const std::string kind = of.text();
         KvGroup group;
         group.reach = TokenReach::named(kind, of.number<std::uint32_t>());
         group.slab_class = SlabClassId(of.number<std::uint32_t>());
         group.hashes_per_block = of.number<std::uint32_t>();
         group.unseen_tokens = of.number<std::uint32_t>();
         to.groups.push_back(group);
       }},
      {"retention",
       [](Options& to, Values& of) {
         to.retention.rule = of.choice<Retention::Rule>(2);
         to.retention.interval_tokens = of.number<std::uint32_t>();
       }},
      {"later_turns", [](Options& to, Values& of) { to.later_turns = of.choice<LaterTurns>(2); }},
      {"other_loads", [](Options& to, Values& of) { to.other_loads = of.choice<OtherLoads>(2); }},
      {"stored_part", [](Options& to, Values& of) { to.stored_part = of.choice<StoredPart>(2); }},
      {"weights", [](Options& to, Values& of) { to.weights = WeightsId(of.number()); }},
      {"rank_timeout", [](Options& to, Values& of) { to.rank_timeout = of.time(); }},
      {"load_timeout", [](Options& to, Values& of) { to.load_timeout = of.time(); }},
      {"max_load_wait", [](Options& to, Values& of) { to.max_load_wait = of.time(); }},
  };
  return kAll;
}

}  // namespace

std::string config_text(const SchedulerOptions& options) {
  std::ostringstream text;
  text << "domain " << options.domain.value() << '\n';
  text << "world_size " << options.world_size << '\n';
  text << "hash_tokens " << options.hash_tokens << '\n';
  text << "num_blocks " << options.num_blocks << '\n';
  for (const SlabClass& one : options.classes) {
    text << "class " << one.slots_per_chunk;
    for (const std::uint64_t bytes : one.slot_bytes) text << ' ' << bytes;
    text << '\n';
  }
  for (const ReplicaPlace& one : options.replicas) {
    text << "replica " << one.size << ' ' << one.index << '\n';
  }
  text << "max_chunks " << options.max_chunks << '\n';
  text << "shared_tier " << (options.shares_tier() ? 1 : 0) << '\n';
  text << "tier " << static_cast<int>(options.tier.eviction) << ' '
       << static_cast<int>(options.tier.admission) << std::hexfloat << ' '
       << options.tier.max_awaited_share << ' ' << options.tier.max_promised_share << ' '
       << (options.tier.key_events ? 1 : 0) << '\n';
  for (const KvGroup& group : options.groups) {
    text << "group " << group.reach.kind_name() << ' ' << group.reach.num_tokens() << ' '
         << group.slab_class.value() << ' ' << group.hashes_per_block << ' ' << group.unseen_tokens
         << '\n';
  }
  text << "retention " << static_cast<int>(options.retention.rule) << ' '
       << options.retention.interval_tokens << '\n';
  text << "later_turns " << static_cast<int>(options.later_turns) << '\n';
  text << "other_loads " << static_cast<int>(options.other_loads) << '\n';
  text << "stored_part " << static_cast<int>(options.stored_part) << '\n';
  text << "weights " << options.weights.value() << '\n';
  text << "rank_timeout " << options.rank_timeout.count() << '\n';
  text << "load_timeout " << options.load_timeout.count() << '\n';
  text << "max_load_wait " << options.max_load_wait.count() << '\n';
  return text.str();
}

SchedulerOptions options_from(const std::string& config_text) {
  SchedulerOptions options;
  options.groups.clear();
  std::istringstream lines(config_text);
  for (std::string line; std::getline(lines, line);) {
    const std::string name = line.substr(0, line.find(' '));
    const auto reader = readers().find(name);
    if (reader == readers().end()) continue;  // A line for people.
    Values values(name, line);
    reader->second(options, values);
  }
  try {
    validate(options);
  } catch (const ConfigError& error) {
    throw RecordingError(std::string("a recording's configuration cannot be used: ") +
                         error.what());
  }
  return options;
}

}  // namespace kvferry::connector
