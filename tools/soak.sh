#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the long tests for SOAK_MINUTES (default 60). The random model of the engine pair runs under TSan with fresh
# seeds all the time. Beside it, all C++ tests run under ASan, over and over and in random order; each round also tests
# the kernels' instructions on fresh launches, and runs the fuzzers one after the other. Random lives under vLLM's own
# scheduler (0.33), engines that are killed, configurations of any kind, and the default policy on random mixtures of
# traffic run at the same time. So do stores and loads of blocks that are damaged on purpose, which their tags must find
# exactly, and faults in the scheduler side's code, whose recordings a replay must follow. The script stops at the first
# failure. build/logs then names the seed, or the input, that replays it.
set -euo pipefail
. "$(dirname "$0")/step.sh"
cd "$KVFERRY_ROOT"
. tools/compiler_cache.sh

minutes=${SOAK_MINUTES:-60}
fixed=()
if setarch -R true 2>/dev/null; then fixed=(setarch -R); fi

tools/setup_venv.sh
tools/build_wheel.sh
tools/setup_vllm_site.sh 0.33

for preset in host-tsan host-asan; do
  # This includes kvferry-bench, kvferry-lab and their tests, which `make test` runs only without a sanitizer.
  step "$preset-configure" "configure $preset" "${fixed[@]}" cmake --preset "$preset" -DKVFERRY_BUILD_BENCH=ON
  step "$preset-build" "build $preset" "${fixed[@]}" cmake --build --preset "$preset" -j "$(nproc)"
done
# Another compiler's warnings. Its programs are not run.
tools/setup_gcc.sh
newer=()
if [ -f build/gcc14/toolchain.cmake ]; then newer=(-DCMAKE_TOOLCHAIN_FILE="$PWD/build/gcc14/toolchain.cmake"); fi
step newer-configure "configure host-newer" cmake --preset host-newer "${newer[@]}"
step newer-build "build everything with a newer GCC" cmake --build --preset host-newer -j "$(nproc)"

# The presets with sanitizers build no kernels.
step "ptx-configure" "configure host-debug" cmake --preset host-debug
step "ptx-build" "build the kernels and their interpreters" cmake --build --preset host-debug --target ptx_test -j "$(nproc)"

step "release-configure" "configure host-release" cmake --preset host-release -DKVFERRY_BUILD_BENCH=ON
step "release-build" "build the laboratory's tests, and those of transfers" \
  cmake --build --preset host-release --target lab_test transfer_test -j "$(nproc)"

rounds() {
  local round=0
  while [ "$(date +%s)" -lt "$deadline" ]; do
    round=$((round + 1))
    echo "round $round"
    ctest --preset host-asan --schedule-random --output-on-failure
    KVFERRY_SOAK_SECONDS=10 build/host-debug/tests/ptx/ptx_test --gtest_filter='*PtxKernels*:*GcnKernels*'
  done
}

# Thousands of random mixtures of traffic, on which the default policy must load as much as LRU does.
bound() {
  KVFERRY_SOAK_SECONDS=$((minutes * 60)) build/host-release/tests/unit/bench/lab_test --gtest_filter='PolicyBound.*'
}

# Blocks are damaged at random; what the tags find is compared with the injector's log block by block.
injections() {
  KVFERRY_SOAK_SECONDS=$((minutes * 60)) build/host-release/tests/unit/transfer/transfer_test \
    --gtest_filter='InjectionSoak.*'
}

# Two hundred faults of the life cycle that end in an error, and those that decide otherwise meanwhile: what each does
# comes again from its recording. Then whole lives in virtual time, each from one seed.
mutants() {
  KVFERRY_NUM_MUTANTS=200 build/host-asan/tests/mutants/mutant_test
  KVFERRY_SOAK_SECONDS=$((minutes * 30)) build/host-asan/tests/model/simulation_test
  KVFERRY_SOAK_SECONDS=$((minutes * 30)) build/host-asan/tests/model/peers_simulation_test
}

lives() {
  local seed
  export PYTHONPATH=build/vllm033/site VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1
  while [ "$(date +%s)" -lt "$deadline" ]; do
    seed=$RANDOM
    echo "lives from seed $seed on"
    KVFERRY_SEED=$seed KVFERRY_NUM_SEEDS=5 .venv/bin/pytest -q -k random_lives \
      tests/python/test_{random_lives,family_lives,random_siblings,shared_tier,features_scheduling}.py
    KVFERRY_SOAK_SECONDS=5 .venv/bin/pytest -q --timeout=0 tests/python/test_client_lives.py
    KVFERRY_NUM_KILLS=10 .venv/bin/pytest -q tests/e2e/test_recorder_deaths.py
    KVFERRY_FUZZ_SECONDS=60 KVFERRY_SEED=$seed .venv/bin/pytest -q --timeout=0 tests/python/test_config_fuzz.py
  done
}

# expect PID WHAT LOG: waits for a process that runs beside the model, and shows the end of its log if it failed.
expect() {
  wait "$1" && return
  say "$2 FAILED: build/logs/soak-$3.log" >&2
  tail -n 40 "build/logs/soak-$3.log" >&2
  exit 1
}

model=build/host-tsan/tests/model/engine_pair_test
# This runs the program in the same way as ctest, which would show its output only at the end.
tsan_options=$(python3 -c '
import json
for preset in json.load(open("CMakePresets.json"))["testPresets"]:
    if preset["name"] == "host-tsan":
        print(preset["environment"]["TSAN_OPTIONS"])')
mkdir -p build/logs
# The minutes count from here, because the builds may take as long as a soak.
deadline=$(($(date +%s) + minutes * 60))
rounds >build/logs/soak-rounds.log 2>&1 &
beside=$!
python3 tools/fuzz.py --seconds $((minutes * 60 / 3)) >build/logs/soak-fuzz.log 2>&1 &
fuzzers=$!
lives >build/logs/soak-lives.log 2>&1 &
lives=$!
bound >build/logs/soak-bound.log 2>&1 &
bound=$!
injections >build/logs/soak-injections.log 2>&1 &
injections=$!
mutants >build/logs/soak-mutants.log 2>&1 &
mutants=$!
# The children of a background shell would outlive it, so they are killed first.
trap 'for one in "$beside" "$fuzzers" "$lives" "$bound" "$injections" "$mutants"; do pkill -P "$one"; kill "$one"; done 2>/dev/null || true' EXIT
say "the model under TSan, rounds of all tests under ASan, the fuzzers and lives under vLLM, for $minutes minutes"
KVFERRY_SOAK_SECONDS=$((minutes * 60)) TSAN_OPTIONS=${tsan_options//'${sourceDir}'/$KVFERRY_ROOT} \
  "${fixed[@]}" "$model" 2>&1 | tee build/logs/soak-model.log
expect "$beside" "a round of all tests" rounds
expect "$fuzzers" "a fuzzer" fuzz
expect "$lives" "lives under vLLM" lives
expect "$bound" "the bound of the default policy" bound
expect "$injections" "stores and loads beside injections" injections
expect "$mutants" "a replay of a fault" mutants
trap - EXIT
say "no failure in $minutes minutes; $(grep -c '^round' build/logs/soak-rounds.log) rounds of all tests"
