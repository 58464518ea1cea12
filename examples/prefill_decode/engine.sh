#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One engine of a pair that computes prompts and answers apart: NIXL carries a prompt's KV cache from the prefill engine
# to the decode engine, and each engine has a tier of its own.
#   examples/prefill_decode/engine.sh prefill [arguments of `vllm serve`, e.g. --port 8001]
#   examples/prefill_decode/engine.sh decode  [arguments of `vllm serve`, e.g. --port 8002]
# Clients talk to proxy.py, beside this file. Needs NIXL in addition to kvferry: tools/setup_fleet.sh, then
# PYTHONPATH=build/fleet/site.
#   FIRST       the connector that the engine asks first: tier (default) or network (docs/DEPLOYMENT.md)
#   LEASE       seconds for which the prefill engine keeps a prompt that no decode engine has read (default 30)
#   TIER        keys of kvferry's kv_connector_extra_config (default {"cpu_bytes_to_use": "256MiB"})
#   VLLM        the command to run (default vllm)
#   MODEL_DIR   where the tiny model is, or will be written (default .cache/tiny-llama)
#   VLLM_NIXL_SIDE_CHANNEL_HOST, VLLM_NIXL_SIDE_CHANNEL_PORT   where the other engine asks for this one's addresses;
#               vLLM's defaults are localhost and 5600, and two engines of one machine need two ports
#   UCX_TLS     the transports that NIXL may use; "tcp,self" works on every machine
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if [[ -d $repository/.venv/bin ]]; then PATH=$repository/.venv/bin:$PATH; fi
case ${1:-} in
  prefill) role=kv_producer ;;
  decode) role=kv_consumer ;;
  *) echo "engine.sh: which engine: prefill or decode?" >&2 && exit 2 ;;
esac
shift
model=$(python "$repository/examples/tiny_model.py" "${MODEL_DIR:-$repository/.cache/tiny-llama}")

export VLLM_CPU_KVCACHE_SPACE=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 OMP_WAIT_POLICY=passive

tier=${TIER:-'{"cpu_bytes_to_use": "256MiB"}'}
tier='{"kv_connector": "KvFerryConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
  "kv_connector_extra_config": '$tier'}'
# With a KV cache on GPUs, leave kv_buffer_device out.
network='{"kv_connector": "NixlConnector", "kv_role": "'$role'", "kv_load_failure_policy": "recompute",
  "kv_buffer_device": "cpu", "kv_connector_extra_config": {"kv_lease_duration": '${LEASE:-30}'}}'
case ${FIRST:-tier} in
  tier) connectors="$tier, $network" ;;
  network) connectors="$network, $tier" ;;
  *) echo "engine.sh: FIRST is tier or network, not ${FIRST}" >&2 && exit 2 ;;
esac

exec "${VLLM:-vllm}" serve "$model" --served-model-name tiny \
  --dtype float32 --enforce-eager --max-model-len 2048 \
  --block-size 32 --num-gpu-blocks-override 100 --enable-prefix-caching \
  --kv-transfer-config '{
    "kv_connector": "MultiConnector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"connectors": ['"$connectors"']}}' \
  "$@"
