#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make test: installs the system packages, then runs all stages of run_tests.py (or those named).
# The last line of the output is "N passed, N failed".
set -euo pipefail
. "$(dirname "$0")/step.sh"
cd "$KVFERRY_ROOT"
. tools/compiler_cache.sh

if ! tools/setup_system.sh test; then
  echo "0 passed, 1 failed"
  exit 1
fi
exec "$(tools/find_python.sh)" tools/run_tests.py "$@"
