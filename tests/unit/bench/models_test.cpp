// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"

#include "byte_sizes.hpp"
#include "models/model_block.hpp"
#include "models/model_shape.hpp"
#include "options/model_options.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace kvferry::bench {
namespace {

BlockShape block(std::string_view model, std::uint32_t ranks, KvLayout layout,
                 std::uint32_t element_bytes = 2, std::uint32_t tokens = 16) {
  return block_of(model_from(model), {ranks, tokens, element_bytes, layout});
}

void expect_shape(const BlockShape& shape, std::uint32_t num_fragments, std::uint64_t bytes) {
  EXPECT_EQ(shape.num_fragments, num_fragments);
  EXPECT_EQ(shape.fragment_bytes, bytes);
}

TEST(Models, BlocksAreThoseThatOneComputesByHand) {
  // 32 layers x 2 x 8 heads x 128 x 2 bytes x 16 tokens.
  expect_shape(block("llama-3.1-8b", 1, KvLayout::kCrossLayer), 1, 2048 * kKiB);
  expect_shape(block("llama-3.1-8b", 1, KvLayout::kPerLayer), 32, 64 * kKiB);
  expect_shape(block("llama-3.1-8b", 1, KvLayout::kKvSplit), 64, 32 * kKiB);
  expect_shape(block("llama-3.1-8b", 4, KvLayout::kPerLayer), 32, 16 * kKiB);
  expect_shape(block("llama-3.1-8b", 4, KvLayout::kKvSplit, 1), 64, 4 * kKiB);
  expect_shape(block("llama-3.1-8b", 1, KvLayout::kPerLayer, 2, 64), 32, 256 * kKiB);
  expect_shape(block("llama-3.3-70b", 8, KvLayout::kCrossLayer), 1, 640 * kKiB);
  expect_shape(block("llama-3.1-405b", 8, KvLayout::kPerLayer), 126, 8 * kKiB);
  expect_shape(block("qwen3-235b-a22b", 4, KvLayout::kKvSplit), 188, 4 * kKiB);
  expect_shape(block("glm-4.5", 8, KvLayout::kCrossLayer, 1), 1, 92 * 4 * kKiB);
}

TEST(Models, MoreRanksThanKvHeadsReplicateThem) {
  // 4 heads on 8 ranks: one each, as on 4 ranks.
  for (const auto layout : {KvLayout::kCrossLayer, KvLayout::kPerLayer, KvLayout::kKvSplit}) {
    const BlockShape on_four = block("qwen3-30b-a3b", 4, layout);
    expect_shape(block("qwen3-30b-a3b", 8, layout), on_four.num_fragments, on_four.fragment_bytes);
  }
  expect_shape(block("qwen3-30b-a3b", 8, KvLayout::kPerLayer), 48, 8 * kKiB);
}

TEST(Models, ALatentIsWholeOnEveryRank) {
  // (512 + 64) x 2 bytes x 16 tokens.
  for (const std::uint32_t ranks : {1U, 8U, 16U}) {
    expect_shape(block("deepseek-v3", ranks, KvLayout::kPerLayer), 61, 18 * kKiB);
    expect_shape(block("kimi-k2", ranks, KvLayout::kCrossLayer), 1, 61 * 18 * kKiB);
  }
  expect_shape(block("deepseek-r1", 1, KvLayout::kPerLayer, 1, 64), 61, 36 * kKiB);
  EXPECT_THROW(static_cast<void>(block("deepseek-r1", 1, KvLayout::kKvSplit)), ConfigError);
}

TEST(Models, OfAHybridABlockHasTheLayersOfOneGroup) {
  // 8 heads x 64: 2 x 16 KiB a layer; 18 sliding and 18 full layers.
  expect_shape(block("gpt-oss-120b", 1, KvLayout::kPerLayer), 18, 32 * kKiB);
  expect_shape(block("gpt-oss-120b", 2, KvLayout::kCrossLayer), 1, 18 * 16 * kKiB);
  // 16 heads x 128; 10 full layers.
  expect_shape(block("gemma-3-27b", 1, KvLayout::kPerLayer), 10, 128 * kKiB);
}

TEST(Models, RanksThatVllmRefusesAreRefused) {
  const auto refused = [](std::string_view model, std::uint32_t ranks) {
    EXPECT_THROW(static_cast<void>(block(model, ranks, KvLayout::kPerLayer)), ConfigError)
        << model << " on " << ranks;
  };
  refused("llama-3.1-8b", 0);
  refused("llama-3.1-8b", 3);
  refused("llama-3.1-8b", 64);
  // 48 query heads: 6 divides them, but not the 8 KV heads; 24 is three times 8.
  refused("minimax-m2", 6);
  expect_shape(block("minimax-m2", 24, KvLayout::kPerLayer), 62, 8 * kKiB);
  refused("qwen2.5-7b", 7);
  refused("deepseek-v3", 3);
}

TEST(Models, EveryEntryIsSound) {
  std::set<std::string_view> names;
  for (const ModelShape& model : known_models()) {
    EXPECT_TRUE(names.insert(model.name).second) << model.name;
    EXPECT_NE(model.repository.find('/'), std::string_view::npos) << model.name;
    EXPECT_NE(model.has_latent(), model.head_size != 0) << model.name;
    EXPECT_EQ(model.num_heads % model.num_kv_heads, 0) << model.name;
    EXPECT_LE(model.layers_per_block, model.num_layers) << model.name;
    EXPECT_GT(block(model.name, 1, KvLayout::kCrossLayer).block_bytes(), 0U) << model.name;
    EXPECT_NE(known_models_text().find(model.name), std::string::npos) << model.name;
  }
  EXPECT_GE(names.size(), 12U);
}

TEST(ModelOptions, NameAShapeOnlyWithAModel) {
  EXPECT_FALSE(block_shape({}));
  EXPECT_EQ(model_text({}), "");
  EXPECT_THROW(static_cast<void>(block_shape({"", 2})), ConfigError);
  EXPECT_THROW(static_cast<void>(block_shape({"", {}, 16})), ConfigError);
  EXPECT_THROW(static_cast<void>(block_shape({"", {}, {}, "per-layer"})), ConfigError);
  EXPECT_THROW(static_cast<void>(block_shape({"", {}, {}, "", "fp8"})), ConfigError);
  EXPECT_THROW(static_cast<void>(block_shape({"llama-9"})), ConfigError);
  const ModelOptions options{"llama-3.1-8b", 4, {}, "per-layer"};
  expect_shape(*block_shape(options), 32, 16 * kKiB);
  EXPECT_EQ(model_text(options),
            "llama-3.1-8b, TP 4, 16 tokens, bf16, per-layer: a block is 32 x 16 KiB (512 KiB)");
}

}  // namespace
}  // namespace kvferry::bench
