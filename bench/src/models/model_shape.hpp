// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvferry::bench {

/// The fields of a model's config.json that determine the size of its KV cache blocks.
struct ModelShape {
  std::string_view name;        ///< The name for --model.
  std::string_view repository;  ///< On the Hugging Face hub; the figures are from its config.json.
  std::uint32_t num_layers;     ///< num_hidden_layers
  /// Layers whose KV is in one block: all of them. If vLLM makes several KV cache groups of a model
  /// with more than one kind of attention, the layers of one group.
  std::uint32_t layers_per_block;
  std::uint32_t num_heads;     ///< num_attention_heads: the query heads.
  std::uint32_t num_kv_heads;  ///< num_key_value_heads; with MLA there is one latent instead.
  /// Elements of one head's K; V has the same number: head_dim, or hidden_size / num_heads. 0: MLA.
  std::uint32_t head_size;
  /// Elements of a token's latent in a layer, for K and V together: kv_lora_rank +
  /// qk_rope_head_dim. 0: no MLA.
  std::uint32_t latent_size;

  [[nodiscard]] bool has_latent() const { return latent_size != 0; }
};

/// The known models, by family.
[[nodiscard]] std::span<const ModelShape> known_models();
/// The model with that name. For other names it throws a ConfigError that lists the known models.
[[nodiscard]] const ModelShape& model_from(std::string_view name);
/// The output of `--model list`: a line for each known model, with its figures.
[[nodiscard]] std::string known_models_text();

}  // namespace kvferry::bench
