// SPDX-License-Identifier: Apache-2.0
#include "mutants.hpp"

#include "interpreter/ptx_text.hpp"

#include <algorithm>
#include <regex>

namespace kvferry::ptx {
namespace {

constexpr std::nullopt_t kWrongBytes = std::nullopt;
const std::vector<int> kEvery;

std::vector<Mutant> bulk_mutants() {
  const std::vector<const char*> bulk{"kvferry_gather_bulk", "kvferry_scatter_bulk"};
  return {
      {"RefillsAStageThatMayStillBeRead",
       "a wait for bulk groups that is left out",
       bulk,
       R"(cp\.async\.bulk\.wait_group\.read 1;)",
       "",
       kEvery,
       {Hazard::kWriteBeforeRead}},
      {"WaitsForOneGroupTooFew",
       "an off-by-one in the number of groups",
       bulk,
       R"(wait_group\.read 1;)",
       "wait_group.read 2;",
       kEvery,
       {Hazard::kWriteBeforeRead}},
      {"RefillsBeforeTheWarpAgrees",
       "a __syncwarp that looks superfluous",
       bulk,
       R"(bar\.warp\.sync\s+-1;)",
       "",
       {2, 3},
       {Hazard::kWriteBeforeRead, Hazard::kReadBeforeWrite, Hazard::kStuck}},
      {"StoresWhatHasNotArrived",
       "try_wait may give up, and is not called again",
       bulk,
       R"(@!done bra again;)",
       "",
       kEvery,
       {Hazard::kReadBeforeWrite}},
      {"NeverFlipsTheParity",
       "the second round through the stages is forgotten",
       bulk,
       R"((try_wait[^,]*, \[%r\d+\]), %r\d+;)",
       "$1, 0;",
       kEvery,
       {Hazard::kReadBeforeWrite, Hazard::kStuck}},
      {"ExpectsNoBytes",
       "a phase that completes before its bytes come",
       bulk,
       R"((expect_tx[^;]*), %r\d+;)",
       "$1, 0;",
       kEvery,
       {Hazard::kReadBeforeWrite, Hazard::kBarrier}},
      {"ExpectsAWholeStage",
       "the last unit of a block is shorter",
       bulk,
       R"((expect_tx[^;]*), %r\d+;)",
       "$1, 8192;",
       kEvery,
       {Hazard::kStuck}},
      {"EndsBeforeItsStores",
       "shared memory goes when the block ends",
       bulk,
       R"(cp\.async\.bulk\.wait_group 0;)",
       "",
       kEvery,
       {Hazard::kUnfinished}},
      {"EndsWhenItsStoresHaveRead",
       "PTX says of no wait but the full one that bytes are visible",
       bulk,
       R"(wait_group 0;)",
       "wait_group.read 0;",
       kEvery,
       {Hazard::kUnfinished}},
      {"NeverCommits",
       "stores that no group holds, for which no wait waits",
       bulk,
       R"(cp\.async\.bulk\.commit_group;)",
       "",
       kEvery,
       {Hazard::kUnfinished, Hazard::kWriteBeforeRead}},
      {"DoesNotFenceItsBarriers",
       "the copy unit may see an mbarrier that is not initialised",
       bulk,
       R"(fence\.[^;]*;)",
       "",
       kEvery,
       {Hazard::kBarrier}},
      {"RunsAheadOfTheInitialisation",
       "lanes that use barriers of another lane too early",
       bulk,
       R"(bar\.warp\.sync\s+-1;)",
       "",
       {0, 1},
       {Hazard::kBarrier}},
      {"AwaitsASecondArrival",
       "an mbarrier made for more threads than arrive",
       bulk,
       R"((mbarrier\.init[^;]*), 1;)",
       "$1, 2;",
       kEvery,
       {Hazard::kStuck}},
      {"LoadsBesideItsStage",
       "an offset into the stage that is 16 bytes off",
       bulk,
       R"((complete_tx::bytes[^ ]* \[%r\d+)\])",
       "$1+16]",
       kEvery,
       {Hazard::kWriteBeforeRead, Hazard::kReadBeforeWrite, Hazard::kBarrier}},
      {"StoresBesideItsPiece",
       "an address that is 16 bytes off",
       bulk,
       R"((bulk_group\.L2::cache_hint \[%rd\d+)\])",
       "$1+16]",
       kEvery,
       {Hazard::kBounds, Hazard::kWrittenTwice, kWrongBytes}},
      {"LoadsFromAnOddAddress",
       "bulk copies are of 16 bytes each",
       bulk,
       R"((complete_tx::bytes[^ ]* \[%r\d+\], \[%rd\d+)\])",
       "$1+8]",
       kEvery,
       {Hazard::kAlignment}},
  };
}

std::vector<Mutant> vector_mutants() {
  const std::vector<const char*> vectors{"kvferry_gather", "kvferry_scatter"};
  const std::vector<const char*> all{"kvferry_gather", "kvferry_scatter", "kvferry_gather_bulk",
                                     "kvferry_scatter_bulk"};
  return {
      {"KeepsOffsetsIn32Bits",
       "pools are larger than 4 GiB",
       all,
       R"((?:mul|mad)\.lo\.s64\s+(%rd\d+),[^;]*;)",
       "$&\n\tand.b64 $1, $1, 4294967295;",
       kEvery,
       {Hazard::kBounds}},
      {"TakesOneUnitTooMany",
       "an off-by-one in the number of units",
       vectors,
       R"(setp\.ge\.u32)",
       "setp.gt.u32",
       {0},
       {Hazard::kBounds, Hazard::kWrittenTwice}},
      {"AlwaysMovesSixteenBytes",
       "the width is chosen from one address alone",
       vectors,
       R"(xor\.b(32|64)(\s+%rd?\d+), [^;]*;)",
       "mov.b$1$2, 0;",
       kEvery,
       {Hazard::kAlignment}},
      {"ForgetsAHead",
       "single bytes before the first aligned address",
       vectors,
       R"(st\.global\.cs\.u8[^;]*;)",
       "",
       {0},
       {kWrongBytes}},
      {"SwapsTwoWordsOfAVector",
       "registers of a vector in the wrong order",
       vectors,
       R"((st\.global\.cs\.v4\.u32[^{]*)\{(%r\d+), (%r\d+),)",
       "$1{$3, $2,",
       {0},
       {kWrongBytes}},
      {"StepsHalfAsFar",
       "a step that was not changed with the loads in flight",
       vectors,
       R"(add\.s64(\s+)(%rd\d+), \2, 256;)",
       "add.s64$1$2, $2, 128;",
       kEvery,
       {Hazard::kWrittenTwice}},
      {"ReadsARegisterThatNothingWrote",
       "a value of another path through the kernel",
       vectors,
       R"(mov\.u32(\s+%r\d+), %ctaid\.x;)",
       "",
       {0},
       {Hazard::kUndefined}},
      {"TakesAnotherFactor",
       "a factor other than the host's",
       {"kvferry_co_run_stream"},
       R"(0f40400000)",
       "0f40400001",
       {0},
       {kWrongBytes}},
      {"WritesItsNeighboursResult",
       "an index that is one off",
       {"kvferry_co_run_gemm"},
       R"(st\.global\.f32(\s+)\[(%rd\d+)\])",
       "st.global.f32$1[$2+4]",
       {0},
       {Hazard::kBounds, kWrongBytes}},
  };
}

std::vector<Mutant> sum_mutants() {
  const std::vector<const char*> summing{"kvferry_gather_tagged", "kvferry_scatter_tagged",
                                         "kvferry_sum"};
  return {
      {"TakesAnotherWeight",
       "a weight other than the host's, of one word in each vector",
       summing,
       R"(-2152535657050944081)",
       "-2152535657050944083",
       kEvery,
       {kWrongBytes}},
      {"TakesAnotherStep",
       "a step from column to column other than the host's",
       summing,
       R"(6364136223846793005)",
       "6364136223846793007",
       kEvery,
       {kWrongBytes}},
      {"GivesTwoWordsOneWeight",
       "words of a vector that could change places",
       summing,
       R"(7960286522194355701)",
       "487617019471545679",
       kEvery,
       {kWrongBytes}},
      {"LeavesOutHalfOfTheLanes",
       "a reduction that is a step short",
       summing,
       R"((mov\.u32\s+%r\d+|shfl\.sync\.bfly\.b32\s+[^,]+, %r\d+), 8(;\s*shfl|, 31, -1;))",
       "$1, 16$2",
       kEvery,
       {kWrongBytes}},
      {"LosesTheUpperHalf",
       "a shuffle moves 32 bits",
       summing,
       R"(mov\.b64 (%rd\d+), \{(%r\d+),%r\d+\};)",
       "mov.b64 $1, {$2,$2};",
       kEvery,
       {kWrongBytes}},
      {"AddsInEveryLane",
       "the team's sum 32 times",
       summing,
       R"(@%p\d+ bra\s+\$L\w+;([^@]{0,300}?red\.global))",
       "$1",
       kEvery,
       {kWrongBytes}},
      {"AddsInTwoSteps",
       "teams that overwrite each other's addition",
       summing,
       R"(red\.global\.add\.u64 \[(%rd\d+)\], (%rd\d+);)",
       "{\n.reg .b64 both;\nld.global.u64 both, [$1];\nadd.s64 both, both, $2;\n"
       "st.global.u64 [$1], both;\n}",
       kEvery,
       {Hazard::kBounds}},
      {"AddsToItsNeighbour",
       "an index that is one off",
       summing,
       R"(red\.global\.add\.u64 \[(%rd\d+)\])",
       "red.global.add.u64 [$1+8]",
       kEvery,
       {Hazard::kBounds}},
      {"AddsNothing",
       "a kernel without sums under the name of one with them",
       summing,
       R"(red\.global\.add\.u64[^;]*;)",
       "",
       kEvery,
       {kWrongBytes}},
  };
}

}  // namespace

std::span<const Mutant> mutants() {
  static const std::vector<Mutant> kAll = [] {
    std::vector<Mutant> all = bulk_mutants();
    for (Mutant& mutant : vector_mutants()) all.push_back(mutant);
    for (Mutant& mutant : sum_mutants()) all.push_back(mutant);
    return all;
  }();
  return kAll;
}

std::optional<std::string> mutated(const std::string& module, std::string_view kernel,
                                   const Mutant& mutant) {
  const std::regex pattern(mutant.pattern);
  for (const EntryText& entry : entries_of(module)) {
    if (entry.name != kernel) continue;
    std::string text = module.substr(0, entry.begin);
    auto rest = module.begin() + static_cast<std::ptrdiff_t>(entry.begin);
    const auto end = module.begin() + static_cast<std::ptrdiff_t>(entry.end);
    const std::vector<int>& which = mutant.which;
    int num_matches = 0;
    bool is_mutated = false;
    for (std::sregex_iterator match(rest, end, pattern), none; match != none; ++match) {
      const bool is_meant = std::find(which.begin(), which.end(), num_matches++) != which.end();
      if (!which.empty() && !is_meant) continue;
      is_mutated = true;
      text.append(rest, (*match)[0].first);
      text += match->format(mutant.replacement);
      rest = (*match)[0].second;
    }
    text.append(rest, module.end());
    return is_mutated ? std::optional(text) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace kvferry::ptx
