#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# try_wheel.sh PYTHON: runs in a bare root (tools/test_wheels.sh), next to the wheel and the wheels that it needs. What a
# user does first: install, import, ask the doctor, measure. The first command that fails ends it.
set -euxo pipefail
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)

# must_not_say WORDS COMMAND...
must_not_say() {
  local words=$1
  shift
  if "$@" 2>&1 | grep -E "$words"; then
    echo "$*: should not say $words" >&2
    exit 1
  fi
}

# The root is bare.
if command -v g++ cmake nvcc; then exit 1; fi
must_not_say 'libtbb|libhwloc|libfmt|libcuda|libamdhip' ldconfig -p

"$1" -m venv /kvferry
PATH=/kvferry/bin:$PATH
pip --disable-pip-version-check install --no-index --find-links "$here" kvferry
python --version

# Nothing that the wheel links is missing.
files=$(python -c 'import kvferry._core, kvferry.bench.program as b; print(kvferry._core.__file__, b.PROGRAM)')
for file in $files; do
  must_not_say 'not found' ldd "$file"
done
python - <<'END'
import kvferry
from kvferry import _core

built = _core.built_kernels()
print(kvferry.__version__, built)
END
kvferry --version
kvferry --help
kvferry doctor
kvferry tier ls
kvferry doctor --config '{"cpu_bytes_to_use": "256MiB"}' | tee "$scratch/verdict"

# Every byte is checked; a wrong one is another exit status.
kvferry-bench link --device host --quick
kvferry-bench copy --device host --quick --json "$scratch/copy.json"
kvferry-bench pipeline --device host --quick --verify all
python - "$scratch/copy.json" <<'END'
import json
import sys

report = json.load(open(sys.argv[1]))
assert report["complete"] and report["verified"] and report["rows"], report
END
kvferry-bench expect --gpu h100-sxm copy --fragment 4KiB
echo "the wheel works here"
