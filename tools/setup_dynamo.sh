#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs NVIDIA Dynamo, and what it needs in addition to .venv, into build/dynamo/site. Put that folder before .venv
# on the path, together with build/vllm031/site, the release that Dynamo works with.
set -euo pipefail
. "$(dirname "$0")/step.sh"
cd "$KVFERRY_ROOT"

home=$KVFERRY_ROOT/build/dynamo
python=$KVFERRY_ROOT/.venv/bin/python
read -ra pip_args <<<"${KVFERRY_PIP_ARGS:-}"
made_by=$(content_hash tools/setup_dynamo.sh tools/requirements-dynamo.txt .venv/.kvferry/environment)
is_stamped "$home/stamp" "$made_by" && exit 0

# The build of torchvision that most machines get is for CUDA's PyTorch. With the PyTorch of .venv its operators do not
# load. torchvision accepts that, except for two operators that it names before it knows. Nobody calls them here.
define_operators() {
  cat >>"$home/site/torchvision/extension.py" <<'PYTHON'


if not _has_ops():
    for _name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
PYTHON
}

rm -rf "$home"
step dynamo-install "install Dynamo and what it needs (0.1 GB)" \
  "$python" -m pip --disable-pip-version-check install --no-deps --only-binary :all: "${pip_args[@]}" \
  --target "$home/site" -r tools/requirements-dynamo.txt
step dynamo-torchvision "make torchvision importable" define_operators
step dynamo-check "import its worker" env PYTHONPATH="$home/site:$KVFERRY_ROOT/build/vllm031/site" \
  VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 "$python" -c '
import dynamo.frontend.main
import dynamo.vllm.main
print(dynamo.vllm.__file__)'
stamp "$home/stamp" "$made_by"
