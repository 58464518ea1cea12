#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Kills processes that share a tier, NUM_DEATHS (10,000) times at random, each time with a fresh seed. First come
# processes that work with the metadata alone, then whole tiers, then schedulers and ranks as processes of their own.
# Stops at the first wrong read or write, lost slot, or survivor that no longer makes progress.
set -euo pipefail
. "$(dirname "$0")/step.sh"
cd "$KVFERRY_ROOT"
. tools/compiler_cache.sh

export KVFERRY_NUM_DEATHS=${NUM_DEATHS:-10000} KVFERRY_SEED=${SEED:-$RANDOM}
step host-debug-configure "configure host-debug" cmake --preset host-debug
step host-debug-build "build host-debug" cmake --build --preset host-debug -j "$(nproc)" --target fault_test
say "$KVFERRY_NUM_DEATHS deaths of each kind; SEED=$KVFERRY_SEED replays them"
build/host-debug/tests/fault/fault_test --gtest_filter='TierDeaths*:SlabDeaths*:RankDeaths*'
