#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The long tests, for SOAK_MINUTES (default 60): the random model of the engine pair under TSan with
# fresh seeds all the time; beside it all C++ tests under ASan, over and over, in random order, in each round
# the kernels' instructions on fresh launches, and the fuzzers one after the other. Stops at the first failure;
# build/logs names the seed, or the input, that replays it.
set -euo pipefail
. "$(dirname "$0")/step.sh"
cd "$KVFERRY_ROOT"
. tools/compiler_cache.sh

minutes=${SOAK_MINUTES:-60}
deadline=$(($(date +%s) + minutes * 60))
fixed=()
if setarch -R true 2>/dev/null; then fixed=(setarch -R); fi

for preset in host-tsan host-asan; do
  # With kvferry-bench and its tests, which `make test` has without a sanitizer only.
  step "$preset-configure" "configure $preset" "${fixed[@]}" cmake --preset "$preset" -DKVFERRY_BUILD_BENCH=ON
  step "$preset-build" "build $preset" "${fixed[@]}" cmake --build --preset "$preset" -j "$(nproc)"
done
# The presets with sanitizers have no kernels.
step "ptx-configure" "configure host-debug" cmake --preset host-debug
step "ptx-build" "build the kernels and their interpreters" cmake --build --preset host-debug --target ptx_test -j "$(nproc)"

rounds() {
  local round=0
  while [ "$(date +%s)" -lt "$deadline" ]; do
    round=$((round + 1))
    echo "round $round"
    ctest --preset host-asan --schedule-random --output-on-failure
    KVFERRY_SOAK_SECONDS=10 build/host-debug/tests/ptx/ptx_test --gtest_filter='*PtxKernels*:*GcnKernels*'
  done
}

model=build/host-tsan/tests/model/engine_pair_test
mkdir -p build/logs
rounds >build/logs/soak-rounds.log 2>&1 &
beside=$!
python3 tools/fuzz.py --seconds $((minutes * 60 / 3)) >build/logs/soak-fuzz.log 2>&1 &
fuzzers=$!
trap 'kill "$beside" "$fuzzers" 2>/dev/null || true' EXIT
say "the model under TSan, rounds of all tests under ASan and the fuzzers, for $minutes minutes"
KVFERRY_SOAK_SECONDS=$((minutes * 60)) "${fixed[@]}" "$model" 2>&1 | tee build/logs/soak-model.log
if ! wait "$beside"; then
  say "a round of all tests FAILED: build/logs/soak-rounds.log" >&2
  tail -n 40 build/logs/soak-rounds.log >&2
  exit 1
fi
if ! wait "$fuzzers"; then
  say "a fuzzer FAILED: build/logs/soak-fuzz.log" >&2
  grep -E '^(plan|report|tier): ' build/logs/soak-fuzz.log >&2
  exit 1
fi
trap - EXIT
say "no failure in $minutes minutes; $(grep -c '^round' build/logs/soak-rounds.log) rounds of all tests"
