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

/// A block's shape by the name of a model. What was not given is empty.
struct ModelOptions {
  std::string model = {};
  std::optional<std::uint32_t> tensor_parallel = std::nullopt;
  std::optional<std::uint32_t> block_tokens = std::nullopt;
  std::string layout = {};
  std::string kv_type = {};
};

/// Adds --model, --tp, --block-tokens, --layout and --kv-dtype; `options` outlives `app`.
/// `--model list` ends the parse as --help does, with the known models as its text.
void add_model_options(CLI::App& app, ModelOptions& options);
/// Those of them that say how many bytes a token has: --model, --tp and --kv-dtype.
void add_model_size_options(CLI::App& app, ModelOptions& options);

/// The shape of the named model's blocks on one rank; nothing if no model is named. Throws
/// ConfigError, also if the other options are given without one.
[[nodiscard]] std::optional<BlockShape> block_shape(const ModelOptions& options);

/// "llama-3.1-8b, TP 4, 16 tokens, bf16, per-layer: a block is 32 x 16 KiB (512 KiB)", for
/// reports; empty if no model is named. Throws as block_shape().
[[nodiscard]] std::string model_text(const ModelOptions& options);

}  // namespace kvferry::bench
