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
#   TIER, VLLM, MODEL_DIR   as in beside_kvferry.sh, one folder up
#   VLLM_NIXL_SIDE_CHANNEL_HOST, VLLM_NIXL_SIDE_CHANNEL_PORT   where the other engine asks for this one's addresses;
#               vLLM's defaults are localhost and 5600, and two engines of one machine need two ports
#   UCX_TLS     the transports that NIXL may use; "tcp,self" works on every machine
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../beside_kvferry.sh"

case ${1:-} in
  prefill) role=kv_producer ;;
  decode) role=kv_consumer ;;
  *) echo "engine.sh: which engine: prefill or decode?" >&2 && exit 2 ;;
esac
shift

# With a KV cache on GPUs, leave kv_buffer_device out.
serve network '{"kv_connector": "NixlConnector", "kv_role": "'$role'", "kv_load_failure_policy": "recompute",
  "kv_buffer_device": "cpu", "kv_connector_extra_config": {"kv_lease_duration": '${LEASE:-30}'}}' "$@"
