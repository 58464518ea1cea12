# SPDX-License-Identifier: Apache-2.0
# To be sourced by the engines' scripts below this folder: kvferry and one more connector in MultiConnector.
#   TIER        keys of kvferry's kv_connector_extra_config (default {"cpu_bytes_to_use": "256MiB"})
#   VLLM        the command to run (default vllm)
#   MODEL_DIR   where the tiny model is, or will be written (default .cache/tiny-llama)
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [[ -d $repository/.venv/bin ]]; then PATH=$repository/.venv/bin:$PATH; fi

# serve NAME CONNECTOR [arguments of `vllm serve`]: with kvferry and this connector, whose configuration is JSON. FIRST
# is the one that the engine asks first: tier (default) or NAME.
serve() {
  local name=$1 other=$2 model connectors tier=${TIER:-'{"cpu_bytes_to_use": "256MiB"}'}
  shift 2
  tier='{"kv_connector": "KvFerryConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
  "kv_connector_extra_config": '$tier'}'
  case ${FIRST:-tier} in
    tier) connectors="$tier, $other" ;;
    "$name") connectors="$other, $tier" ;;
    *) echo "engine.sh: FIRST is tier or $name, not ${FIRST}" >&2 && exit 2 ;;
  esac
  model=$(python "$repository/examples/tiny_model.py" "${MODEL_DIR:-$repository/.cache/tiny-llama}")
  export VLLM_CPU_KVCACHE_SPACE=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 OMP_WAIT_POLICY=passive
  exec "${VLLM:-vllm}" serve "$model" --served-model-name tiny \
    --dtype float32 --enforce-eager --max-model-len 2048 \
    --block-size 32 --num-gpu-blocks-override 100 --enable-prefix-caching \
    --kv-transfer-config '{
    "kv_connector": "MultiConnector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"connectors": ['"$connectors"']}}' \
    "$@"
}
