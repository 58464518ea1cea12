#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Serve the tiny model with kvferry behind vLLM's OpenAI-compatible server, on a CPU.
#   examples/serve.sh [arguments of `vllm serve`, e.g. --port 8001]
#   TIER        keys of kv_connector_extra_config (default {"cpu_bytes_to_use": "256MiB"})
#   VLLM        the command to run (default vllm)
#   MODEL_DIR   where the tiny model is, or will be written (default .cache/tiny-llama)
# Ask it something:
#   curl -s localhost:8000/v1/completions -H 'content-type: application/json' \
#     -d '{"model": "tiny", "prompt": "once upon a time", "max_tokens": 16, "temperature": 0}'
#   curl -s localhost:8000/metrics | grep prompt_tokens_by_source
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [[ -d $repository/.venv/bin ]]; then PATH=$repository/.venv/bin:$PATH; fi
if ! command -v vllm >/dev/null; then
  echo "serve.sh: no vllm command; run 'make setup' in $repository first" >&2
  exit 2
fi
model=$(python "$repository/examples/tiny_model.py" "${MODEL_DIR:-$repository/.cache/tiny-llama}")

export VLLM_CPU_KVCACHE_SPACE=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 OMP_WAIT_POLICY=passive

tier=${TIER:-'{"cpu_bytes_to_use": "256MiB"}'}
# A pool of 100 blocks of 32 tokens is soon full, so that the tier has something to do.
exec "${VLLM:-vllm}" serve "$model" --served-model-name tiny \
  --dtype float32 --enforce-eager --max-model-len 2048 \
  --block-size 32 --num-gpu-blocks-override 100 --enable-prefix-caching \
  --kv-transfer-config '{
    "kv_connector": "KvFerryConnector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": '"$tier"'}' \
  "$@"
