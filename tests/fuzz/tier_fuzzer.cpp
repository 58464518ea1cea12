// SPDX-License-Identifier: Apache-2.0
// What two engine instances do in the tier of one file, and what befalls the file while neither has
// it open. An input is a list of steps, each a byte and what it takes.
#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/peers/tier_header.hpp"

#include "tier_damage.hpp"
#include "tier_file.hpp"
#include "tier_life.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

namespace kvferry::fuzz {
namespace {

constexpr int kMostSteps = 64;
constexpr int kMostDamage = 12;

class Input {
 public:
  explicit Input(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  [[nodiscard]] bool is_over() const { return bytes_.empty(); }
  std::uint8_t byte() {
    if (bytes_.empty()) return 0;
    const std::uint8_t next = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return next;
  }
  std::uint16_t two() {
    const std::uint8_t low = byte();
    return static_cast<std::uint16_t>(low | byte() << 8U);
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

/// One input's file and instances.
class Story {
 public:
  Story(TierFile& file, Input input) : file_(file), input_(input) { file_.restore(); }

  void play() {
    for (int i = 0; i < kMostSteps && !input_.is_over() && !refused_; ++i) {
      step();
      for (const auto& life : lives_) {
        if (life) life->check();
      }
      TierLife::check_apart(lives_);
    }
    end_all();
    if (refused_) return;
    // One to whom every grace is over.
    if (auto last = join({})) last->expect_all_of_it();
  }

 private:
  void step() {
    const std::uint8_t what = input_.byte();
    std::unique_ptr<TierLife>& life = lives_[what >> 7U];
    switch (what % 16) {
      case 0:
        return damage();
      case 1:
        return file_.freeze();
      case 2:
        if (life) {
          life.reset();
        } else {
          life = join({.name_space = 1U + (what >> 4U & 1U), .is_patient = (what & 0x20U) != 0});
        }
        return;
      case 3:
        end_all();
        file_.truncate(input_.byte() % 2 == 0 ? 1 + input_.two() : file_.places().end / 2);
        expect_refused();
        return;
      default:
        break;
    }
    if (!life) life = join({});
    if (life) work(*life, what % 16);
  }

  void work(TierLife& life, int what) {
    const std::uint8_t how = input_.byte();
    const std::uint32_t slab_class = how & 1U;
    switch (what) {
      case 4:
      case 5:
      case 6:
        return life.begin_store(slab_class, input_.byte(), 1 + how / 2 % 12);
      case 7:
      case 8:
        return life.end_store(how % 4 != 0);
      case 9:
      case 10:
        return life.lease(slab_class, input_.byte(), 1 + how / 2 % 12);
      case 11:
        return life.end_lease();
      case 12:
        return life.forget();
      case 13:
        if (how % 8 == 0) life.reset();
        return life.sweep();
      default:
        return life.tend();
    }
  }

  void damage() {
    end_all();
    for (int count = 1 + input_.byte() % kMostDamage; count > 0; --count) {
      const std::uint8_t kind = input_.byte();
      inflict({.kind = static_cast<Damage::Kind>(kind % Damage::kNumKinds),
               .part = input_.byte(),
               .where = input_.two(),
               .what = input_.two()},
              file_);
    }
    excuse(file_);
  }

  void end_all() {
    for (auto& life : lives_) life.reset();
  }

  /// Nothing if the header is damaged, of which a person is told.
  std::unique_ptr<TierLife> join(TierLife::Options options) {
    options.number = num_joined_++;
    try {
      auto life = std::make_unique<TierLife>(file_, options);
      if (!file_.is_replaced()) return life;
      const auto header = cpu_tier::read_tier_header(file_.descriptor());
      KVFERRY_CHECK(header && header->file.version != cpu_tier::TierHeader::kVersion,
                    "a file was replaced that says what it is");
      refused_ = true;
      return nullptr;
    } catch (const ConfigError& error) {
      const std::string message = error.what();
      KVFERRY_CHECK(message.find("/dev/shm/kvferry_tier_fuzzer_") != std::string::npos &&
                        message.find("name another") != std::string::npos,
                    "a refusal that says too little: " + message);
      refused_ = true;
      return nullptr;
    }
  }

  void expect_refused() {
    KVFERRY_CHECK(join({}) == nullptr, "a file that is too short was taken");
  }

  TierFile& file_;
  Input input_;
  std::array<std::unique_ptr<TierLife>, 2> lives_;
  std::uint32_t num_joined_ = 0;
  bool refused_ = false;
};

}  // namespace
}  // namespace kvferry::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using kvferry::fuzz::TierFile;
  static TierFile file;
  kvferry::fuzz::Story(file, kvferry::fuzz::Input({data, size})).play();
  return 0;
}
