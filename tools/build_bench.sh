#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds build/bench/bench/kvferry-bench, and kvferry-lab next to it, in release mode.
set -euo pipefail
. "$(dirname "$0")/step.sh"
cd "$KVFERRY_ROOT"
. tools/compiler_cache.sh

step bench-configure "configure kvferry-bench" \
  cmake -S . -B build/bench -G Ninja -DCMAKE_BUILD_TYPE=Release -DKVFERRY_BUILD_BENCH=ON
step bench-build "build kvferry-bench and kvferry-lab" cmake --build build/bench --target kvferry-bench kvferry-lab -j "$(nproc)"
