// SPDX-License-Identifier: Apache-2.0
// The figures come from each model's config.json on its hub page, from the fields that
// model_shape.hpp names. They were checked against published copies of these files (2026-11).
#include "kvferry/base/error.hpp"

#include "models/model_shape.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace kvferry::bench {
namespace {

constexpr ModelShape with_heads(std::string_view name, std::string_view repository,
                                std::uint32_t num_layers, std::uint32_t num_heads,
                                std::uint32_t num_kv_heads, std::uint32_t head_size) {
  return {name, repository, num_layers, num_layers, num_heads, num_kv_heads, head_size, 0};
}

/// `group`: the layers of one of vLLM's KV cache groups.
constexpr ModelShape hybrid(ModelShape model, std::uint32_t group) {
  model.layers_per_block = group;
  return model;
}

/// `rank`: kv_lora_rank; `rope`: qk_rope_head_dim.
constexpr ModelShape with_latent(std::string_view name, std::string_view repository,
                                 std::uint32_t num_layers, std::uint32_t num_heads,
                                 std::uint32_t rank, std::uint32_t rope) {
  return {name, repository, num_layers, num_layers, num_heads, 1, 0, rank + rope};
}

// Hybrid models: vLLM makes groups of as many layers as there are of the rarer kind
// (v1/core/kv_cache_utils.py, _get_kv_cache_groups_uniform_page_size), and a block belongs to one
// group. gpt-oss: layer_types alternates between sliding and full, so a group is half of the
// layers. Gemma 3: sliding_window_pattern is 6, so 10 of 62 layers are full and a group has 10;
// vLLM pads its groups of sliding layers, which have eight or nine, up to that.
constexpr std::array kModels = {
    with_heads("llama-3.1-8b", "meta-llama/Llama-3.1-8B", 32, 32, 8, 128),
    with_heads("llama-3.1-70b", "meta-llama/Llama-3.1-70B", 80, 64, 8, 128),
    with_heads("llama-3.1-405b", "meta-llama/Llama-3.1-405B", 126, 128, 8, 128),
    with_heads("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct", 80, 64, 8, 128),
    with_heads("qwen2.5-7b", "Qwen/Qwen2.5-7B", 28, 28, 4, 128),
    with_heads("qwen3-8b", "Qwen/Qwen3-8B", 36, 32, 8, 128),
    with_heads("qwen3-14b", "Qwen/Qwen3-14B", 40, 40, 8, 128),
    with_heads("qwen3-32b", "Qwen/Qwen3-32B", 64, 64, 8, 128),
    with_heads("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", 48, 32, 4, 128),
    with_heads("qwen3-235b-a22b", "Qwen/Qwen3-235B-A22B", 94, 64, 4, 128),
    hybrid(with_heads("gemma-3-27b", "google/gemma-3-27b-it", 62, 32, 16, 128), 10),
    hybrid(with_heads("gpt-oss-20b", "openai/gpt-oss-20b", 24, 64, 8, 64), 12),
    hybrid(with_heads("gpt-oss-120b", "openai/gpt-oss-120b", 36, 64, 8, 64), 18),
    with_heads("glm-4.5", "zai-org/GLM-4.5", 92, 96, 8, 128),
    with_heads("glm-4.5-air", "zai-org/GLM-4.5-Air", 46, 96, 8, 128),
    with_heads("minimax-m2", "MiniMaxAI/MiniMax-M2", 62, 48, 8, 128),
    with_latent("deepseek-v3", "deepseek-ai/DeepSeek-V3", 61, 128, 512, 64),
    with_latent("deepseek-r1", "deepseek-ai/DeepSeek-R1", 61, 128, 512, 64),
    with_latent("kimi-k2", "moonshotai/Kimi-K2-Instruct", 61, 64, 512, 64),
};

std::string line_of(const ModelShape& model) {
  const std::string layers =
      model.layers_per_block == model.num_layers
          ? fmt::format("{} layers", model.num_layers)
          : fmt::format("{} layers, {} in a block", model.num_layers, model.layers_per_block);
  const std::string kv =
      model.has_latent() ? fmt::format("MLA, a latent of {}", model.latent_size)
                         : fmt::format("{} KV heads of {}", model.num_kv_heads, model.head_size);
  return fmt::format("{:<16} {}, {} ({})\n", model.name, layers, kv, model.repository);
}

}  // namespace

std::span<const ModelShape> known_models() { return kModels; }

const ModelShape& model_from(std::string_view name) {
  const auto* const found = std::find_if(
      kModels.begin(), kModels.end(), [&](const ModelShape& model) { return model.name == name; });
  if (found != kModels.end()) return *found;
  std::string names;
  for (const ModelShape& model : kModels) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", model.name);
  }
  throw ConfigError(fmt::format(
      "'{}' is not a known model: give its fragments by hand, or write {}", name, names));
}

std::string known_models_text() {
  std::string text;
  for (const ModelShape& model : kModels) text += line_of(model);
  return text;
}

}  // namespace kvferry::bench
