// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "measure/block_shape.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace kvferry::bench {

/// The options for a block's shape by the name of a model. Options that were not given are empty.
struct ModelOptions {
  std::string model = {};
  std::optional<std::uint32_t> tensor_parallel = std::nullopt;
  std::optional<std::uint32_t> block_tokens = std::nullopt;
  std::string layout = {};
  std::string kv_type = {};
};

/// Adds --model, --tp, --block-tokens, --layout and --kv-dtype; `options` outlives `app`.
/// `--model list` ends the parsing like --help, and prints the known models.
void add_model_options(CLI::App& app, ModelOptions& options);
/// Adds only the options that determine the bytes of a token: --model, --tp and --kv-dtype.
void add_model_size_options(CLI::App& app, ModelOptions& options);

/// The shape of the named model's blocks on one rank; unset if no model is named. Throws
/// ConfigError, also if the other options are given without a model.
[[nodiscard]] std::optional<BlockShape> block_shape(const ModelOptions& options);

/// A text for reports: "llama-3.1-8b, TP 4, 16 tokens, bf16, per-layer: a block is 32 x 16 KiB
/// (512 KiB)"; empty if no model is named. Throws like block_shape().
[[nodiscard]] std::string model_text(const ModelOptions& options);

}  // namespace kvferry::bench
