#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The engine of one node of several that share a distributed store, Mooncake: what its own tier has lost, or another
# node has computed, it finds there.
#   examples/distributed_store/engine.sh [arguments of `vllm serve`, e.g. --port 8001]
# Start Mooncake's master first (docs/DEPLOYMENT.md). Needs Mooncake in addition to kvferry: tools/setup_fleet.sh, then
# PYTHONPATH=build/fleet/site LD_LIBRARY_PATH=build/fleet/lib.
#   FIRST       the connector that the engine asks first: tier (default) or store (docs/DEPLOYMENT.md)
#   TIER, VLLM, MODEL_DIR   as in beside_kvferry.sh, one folder up
#   MOONCAKE_CONFIG_PATH   where the master is, and how much memory this node gives to the store (default mooncake.json,
#               beside this file)
#   LOOKUP_PORT a number for the socket by which vLLM's scheduler asks its worker what the store has; two engines of one
#               machine need two (default 0)
#   MC_RPC_TIMEOUT_MS   how long Mooncake waits for a master that does not answer (default 2000; Mooncake's is 30000)
#   VLLM_HOST_IP   the address by which other nodes reach this one
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../beside_kvferry.sh"

export MOONCAKE_CONFIG_PATH=${MOONCAKE_CONFIG_PATH:-$repository/examples/distributed_store/mooncake.json}
export MC_RPC_TIMEOUT_MS=${MC_RPC_TIMEOUT_MS:-2000} MC_RPC_CONNECT_TIMEOUT_MS=${MC_RPC_CONNECT_TIMEOUT_MS:-1000}

# Without lookup_async the engine does nothing else while the master is asked.
serve store '{"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
  "kv_connector_extra_config": {"lookup_async": true, "lookup_rpc_port": '${LOOKUP_PORT:-0}'}}' "$@"
