#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes build/docs/venv with what builds the documentation site. It is an environment of its own, because the site needs
# neither an engine nor kvferry: it reads the sources.
#   setup_docs.sh [headers]
# "headers" also installs Doxygen with apt, for the reference of the C++ headers.
set -euo pipefail
. "$(dirname "$0")/step.sh"
cd "$KVFERRY_ROOT"

home=$KVFERRY_ROOT/build/docs/venv
read -ra pip_args <<<"${KVFERRY_PIP_ARGS:-}"
base_python=$(tools/find_python.sh)
made_by="$("$base_python" --version) $(content_hash tools/requirements-docs.txt)"

if ! is_stamped "$home/stamp" "$made_by"; then
  rm -rf "$home"
  step docs-venv "make build/docs/venv" "$base_python" -m venv "$home"
  step docs-install "install MkDocs (30 MB)" \
    "$home/bin/python" -m pip --disable-pip-version-check install --no-deps --only-binary :all: "${pip_args[@]}" \
    -r tools/requirements-docs.txt
  step docs-check "import it" "$home/bin/python" -c 'import markdown_it, material, mkdocs, mkdocstrings_handlers.python'
  stamp "$home/stamp" "$made_by"
fi
if [ "${1-}" = headers ]; then
  tools/setup_system.sh docs
fi
