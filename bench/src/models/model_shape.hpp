// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvferry::bench {

/// What of a model decides how large the blocks of its KV cache are: fields of its config.json.
struct ModelShape {
  std::string_view name;        ///< As --model takes it.
  std::string_view repository;  ///< On the Hugging Face hub; the figures are of its config.json.
  std::uint32_t num_layers;     ///< num_hidden_layers
  /// Layers whose KV lies in one block: all of them, but where vLLM makes several KV cache groups
  /// of a model with more than one kind of attention, the layers of one group.
  std::uint32_t layers_per_block;
  std::uint32_t num_heads;     ///< num_attention_heads: those of queries.
  std::uint32_t num_kv_heads;  ///< num_key_value_heads; with MLA there is one latent instead.
  /// Elements of one head's K, and as many of its V: head_dim, or hidden_size / num_heads. 0: MLA.
  std::uint32_t head_size;
  /// Elements of a token's latent in a layer, K and V in one: kv_lora_rank + qk_rope_head_dim.
  /// 0: no MLA.
  std::uint32_t latent_size;

  [[nodiscard]] bool has_latent() const { return latent_size != 0; }
};

/// The known models, by family.
[[nodiscard]] std::span<const ModelShape> known_models();
/// The model of that name. Throws ConfigError that lists the known ones.
[[nodiscard]] const ModelShape& model_from(std::string_view name);
/// A line for each known model, with its figures: what `--model list` prints.
[[nodiscard]] std::string known_models_text();

}  // namespace kvferry::bench
