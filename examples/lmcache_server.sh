#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# LMCache's server with kvferry as its L2. vLLM instances connect with LMCacheMPConnector
# (python/kvferry/lmcache/README.md).
#   CAPACITY     of kvferry's tier (8GiB)
#   SHARED_PATH  a file in shared memory that outlives the server (none)
#   L1_GB, PORT, CHUNK_TOKENS
# Other arguments go to `lmcache server`.
set -euo pipefail

params='{"capacity": "'${CAPACITY:-8GiB}'"'
if [ -n "${SHARED_PATH:-}" ]; then params+=', "shared_path": "'$SHARED_PATH'"'; fi
exec lmcache server --host 127.0.0.1 --port "${PORT:-15555}" --chunk-size "${CHUNK_TOKENS:-256}" \
  --l1-size-gb "${L1_GB:-4}" --eviction-policy LRU \
  --l2-adapter '{"type": "native_plugin", "module_path": "kvferry.lmcache", "class_name": "KvFerryClient",
    "adapter_params": '"$params"'}}' "$@"
