#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the Python (3.11 or newer) from which the virtual environment is made: $KVFERRY_PYTHON,
# or else the python3 on the path, or else the system's.
set -euo pipefail

seen=""
for python in ${KVFERRY_PYTHON:-python3 /usr/bin/python3}; do
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
  if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    "$python" -c 'import sys; print(sys.executable)'
    exit 0
  fi
  seen="$seen $python is $version;"
done
echo "kvferry needs Python 3.11 or newer:${seen:- no python3 found.}" \
  "Install one and name it: KVFERRY_PYTHON=python3.12 make ..." >&2
exit 1
