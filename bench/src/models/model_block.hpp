// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "measure/block_shape.hpp"
#include "models/model_shape.hpp"

#include <cstdint>
#include <string_view>

namespace kvferry::bench {

/// The layout of a block in an engine's device memory: the number of pieces that are not
/// contiguous.
enum class KvLayout : std::uint8_t {
  kCrossLayer,  ///< One fragment: all layers in a row (vLLM since 0.12, if it can).
  kPerLayer,    ///< One fragment per layer: K and V together.
  kKvSplit      ///< Two fragments per layer: separate tensors for K and V. Not with MLA.
};
/// "cross-layer", "per-layer", "kv-split".
[[nodiscard]] const char* to_string(KvLayout layout);
/// The inverse of to_string(). For other names it throws a ConfigError that lists the names.
[[nodiscard]] KvLayout kv_layout_from(std::string_view text);

/// How a model is served.
struct KvServing {
  std::uint32_t tensor_parallel = 1;  ///< Number of ranks that share a model's heads.
  std::uint32_t block_tokens = 16;
  std::uint32_t element_bytes = 2;
  KvLayout layout = KvLayout::kCrossLayer;
};

/// Bytes of an element: "bf16" has 2, "fp8" has 1. With MLA "fp8" is plain fp8 too, not vLLM's own
/// format fp8_ds_mla (656 bytes per token). Throws ConfigError.
[[nodiscard]] std::uint32_t kv_element_bytes_from(std::string_view text);

/// The shape of a block of `model` on one rank. A rank has max(1, KV heads / ranks) heads; they are
/// replicated if there are more ranks than heads (vLLM: ModelConfig.get_num_kv_heads). A latent is
/// on every rank. Bytes of a layer: tokens x heads x 2 (K and V) x head size x element bytes, or
/// tokens x latent x element bytes. Throws ConfigError for what vLLM refuses: numbers of query
/// heads or KV heads that are not a multiple of the ranks, nor (if there are more ranks) a divisor
/// of them; and for kKvSplit with MLA.
[[nodiscard]] BlockShape block_of(const ModelShape& model, const KvServing& serving);

}  // namespace kvferry::bench
