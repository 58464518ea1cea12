// SPDX-License-Identifier: Apache-2.0
#include "options/model_options.hpp"

#include "kvferry/base/error.hpp"

#include "models/model_block.hpp"
#include "models/model_shape.hpp"
#include "options/sizes.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace kvferry::bench {
namespace {

constexpr const char* kDefaultType = "bf16";

const std::string& type_of(const ModelOptions& options) {
  static const std::string kDefault = kDefaultType;
  return options.kv_type.empty() ? kDefault : options.kv_type;
}

KvServing serving_of(const ModelOptions& options) {
  KvServing serving;
  serving.tensor_parallel = options.tensor_parallel.value_or(serving.tensor_parallel);
  serving.block_tokens = options.block_tokens.value_or(serving.block_tokens);
  if (!options.layout.empty()) serving.layout = kv_layout_from(options.layout);
  serving.element_bytes = kv_element_bytes_from(type_of(options));
  return serving;
}

}  // namespace

void add_model_size_options(CLI::App& app, ModelOptions& options) {
  app.add_option("--model", options.model,
                 "model whose blocks are copied; list: show the known models")
      ->type_name("NAME")
      ->each([](const std::string& name) {
        if (name == "list") throw CLI::CallForVersion(known_models_text(), 0);
      });
  app.add_option("--tp", options.tensor_parallel, "with --model: tensor-parallel ranks [1]")
      ->check(CLI::Range(1, 1024));
  app.add_option("--kv-dtype", options.kv_type,
                 "with --model: type of the KV cache, bf16 or fp8 [bf16]");
}

void add_model_options(CLI::App& app, ModelOptions& options) {
  add_model_size_options(app, options);
  app.add_option("--block-tokens", options.block_tokens, "with --model: tokens of a block [16]")
      ->check(CLI::Range(1, 65536));
  app.add_option("--layout", options.layout,
                 "with --model: cross-layer (a block is one piece), per-layer, kv-split (K "
                 "and V apart) [cross-layer]");
}

std::optional<BlockShape> block_shape(const ModelOptions& options) {
  if (!options.model.empty()) return block_of(model_from(options.model), serving_of(options));
  if (options.tensor_parallel || options.block_tokens || !options.layout.empty() ||
      !options.kv_type.empty()) {
    throw ConfigError("--tp, --block-tokens, --layout and --kv-dtype need --model");
  }
  return std::nullopt;
}

std::string model_text(const ModelOptions& options) {
  const auto shape = block_shape(options);
  if (!shape) return "";
  const KvServing serving = serving_of(options);
  return fmt::format("{}, TP {}, {} tokens, {}, {}: a block is {} ({})", options.model,
                     serving.tensor_parallel, serving.block_tokens, type_of(options),
                     to_string(serving.layout), to_string(*shape),
                     bytes_text(shape->block_bytes()));
}

}  // namespace kvferry::bench
