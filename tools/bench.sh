#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a short form of every subcommand of kvferry-bench and kvferry-lab. The reports go to bench/results/.
#   KVFERRY_BENCH_DEVICE   host (default), cuda, hip, cuda:1
#   KVFERRY_BENCH_ARGS     arguments for every subcommand (default: --quick; empty: the full form)
#   KVFERRY_MOONCAKE_TRACE requests for `trace` (default: ../shared/traces; if there are none, synthetic ones)
set -euo pipefail
. "$(dirname "$0")/step.sh"
cd "$KVFERRY_ROOT"

device=${KVFERRY_BENCH_DEVICE:-host}
read -ra arguments <<<"${KVFERRY_BENCH_ARGS---quick}"
results=bench/results
programs=build/bench/bench
mkdir -p "$results"

tools/build_bench.sh

trace=${KVFERRY_MOONCAKE_TRACE:-../shared/traces/mooncake_conversation_trace.jsonl}
requests=("$trace")
[ -e "$trace" ] || requests=(--traffic all)

run() { # run NAME PROGRAM SUBCOMMAND ARGUMENT...
  local name=$1 program=$2
  shift 2
  "$programs/$program" "$@" "${arguments[@]}" \
    --json "$results/$name.json" --csv "$results/$name.csv" --markdown "$results/$name.md"
}

run link kvferry-bench link --device "$device"
run copy kvferry-bench copy --device "$device"
run pipeline kvferry-bench pipeline --device "$device"
run pipeline_co_run kvferry-bench pipeline --device "$device" --co-run gemm,stream --direction store,load
run pin kvferry-lab pin --device "$device"
run meta kvferry-lab meta
run share kvferry-lab share
run trace kvferry-lab trace "${requests[@]}"
run fleet kvferry-lab fleet "${requests[@]}"
say "reports are in $results; kvferry plot $results/*.json draws them"
