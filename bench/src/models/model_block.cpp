// SPDX-License-Identifier: Apache-2.0
#include "models/model_block.hpp"

#include "kvferry/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvferry::bench {
namespace {

void check_ranks(const ModelShape& model, std::uint32_t ranks) {
  if (ranks == 0 || model.num_heads % ranks != 0) {
    throw ConfigError(fmt::format("--tp {} does not divide the {} attention heads of {}", ranks,
                                  model.num_heads, model.name));
  }
  if (model.has_latent()) return;
  const std::uint32_t more = std::max(ranks, model.num_kv_heads);
  const std::uint32_t less = std::min(ranks, model.num_kv_heads);
  if (more % less != 0) {
    throw ConfigError(fmt::format("--tp {} and the {} KV heads of {}: one has to divide the other",
                                  ranks, model.num_kv_heads, model.name));
  }
}

/// K and V of a token in one layer on one rank.
std::uint64_t token_elements(const ModelShape& model, std::uint32_t ranks) {
  if (model.has_latent()) return model.latent_size;
  return std::uint64_t{2} * std::max(1U, model.num_kv_heads / ranks) * model.head_size;
}

}  // namespace

const char* to_string(KvLayout layout) {
  switch (layout) {
    case KvLayout::kCrossLayer:
      return "cross-layer";
    case KvLayout::kPerLayer:
      return "per-layer";
    case KvLayout::kKvSplit:
      return "kv-split";
  }
  return "unknown layout";
}

KvLayout kv_layout_from(std::string_view text) {
  for (const auto layout : {KvLayout::kCrossLayer, KvLayout::kPerLayer, KvLayout::kKvSplit}) {
    if (text == to_string(layout)) return layout;
  }
  throw ConfigError(
      fmt::format("'{}' is not a layout: write cross-layer, per-layer or kv-split", text));
}

std::uint32_t kv_element_bytes_from(std::string_view text) {
  if (text == "bf16") return 2;
  if (text == "fp8") return 1;
  throw ConfigError(fmt::format("'{}' is not a KV cache type: write bf16 or fp8", text));
}

BlockShape block_of(const ModelShape& model, const KvServing& serving) {
  check_ranks(model, serving.tensor_parallel);
  const std::uint64_t layer_bytes =
      token_elements(model, serving.tensor_parallel) * serving.block_tokens * serving.element_bytes;
  switch (serving.layout) {
    case KvLayout::kCrossLayer:
      return {1, layer_bytes * model.layers_per_block};
    case KvLayout::kPerLayer:
      return {model.layers_per_block, layer_bytes};
    case KvLayout::kKvSplit:
      break;
  }
  if (model.has_latent()) {
    throw ConfigError(fmt::format(
        "{} has one latent for K and V: its layout is per-layer or cross-layer, not kv-split",
        model.name));
  }
  return {2 * model.layers_per_block, layer_bytes / 2};
}

}  // namespace kvferry::bench
