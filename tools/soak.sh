#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The C++ tests under TSan and ASan over and over, in random order and with a new seed each round,
# for SOAK_MINUTES (default 30). Stops at the first failure and names the seed.
set -euo pipefail
. "$(dirname "$0")/step.sh"
cd "$KVFERRY_ROOT"
. tools/compiler_cache.sh

minutes=${SOAK_MINUTES:-30}
deadline=$(($(date +%s) + minutes * 60))
fixed=()
if setarch -R true 2>/dev/null; then fixed=(setarch -R); fi

for preset in host-tsan host-asan; do
  step "$preset-configure" "configure $preset" "${fixed[@]}" cmake --preset "$preset"
  step "$preset-build" "build $preset" "${fixed[@]}" cmake --build --preset "$preset" -j "$(nproc)"
done
# How long the model tests draw new seeds, each round.
export KVFERRY_SOAK_SECONDS=${KVFERRY_SOAK_SECONDS:-60}
round=0
while [ "$(date +%s)" -lt "$deadline" ]; do
  round=$((round + 1))
  export KVFERRY_SEED=$((RANDOM * 32768 + RANDOM))
  for preset in host-tsan host-asan; do
    step "soak-$preset" "round $round, $preset, KVFERRY_SEED=$KVFERRY_SEED" \
      "${fixed[@]}" ctest --preset "$preset" --schedule-random -j "$(nproc)"
  done
done
say "$round rounds in $minutes minutes, no failure"
