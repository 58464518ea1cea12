# SPDX-License-Identifier: Apache-2.0
# To be sourced by the other scripts: shows progress, one line per step.
#
#   step NAME TEXT COMMAND...   runs COMMAND with its output in build/logs/NAME.log and shows
#                               "[ elapsed] TEXT ... took"; on failure the log's last lines and path
#   say TEXT                    one line with the elapsed time
#
# The clock starts with the first script of a make run, which hands on KVFERRY_STARTED.

KVFERRY_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export KVFERRY_ROOT
export KVFERRY_STARTED=${KVFERRY_STARTED:-$(date +%s)}
KVFERRY_LOGS=$KVFERRY_ROOT/build/logs

elapsed() { printf '[%4ds]' $(($(date +%s) - KVFERRY_STARTED)); }

say() { echo "$(elapsed) $*"; }

step() {
  local name=$1 text=$2 log began pid status=0
  shift 2
  log=$KVFERRY_LOGS/$name.log
  mkdir -p "$KVFERRY_LOGS"
  began=$(date +%s)
  # The command runs in the background and in a process group of its own, so that Ctrl-C ends all of it, and so that
  # a shell function stops at its first failure.
  set -m
  "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  set +m
  trap 'kill -- -"$pid" 2>/dev/null; exit 130' INT TERM
  if [ -t 1 ]; then
    while kill -0 "$pid" 2>/dev/null; do
      printf '\r%s %s ... %ds ' "$(elapsed)" "$text" $(($(date +%s) - began))
      sleep 0.5
    done
    printf '\r\033[K'
  else
    say "$text ..."
  fi
  wait "$pid" || status=$?
  trap - INT TERM
  if [ "$status" -eq 0 ]; then
    say "$text: done in $(($(date +%s) - began)) s"
    return 0
  fi
  say "$text: FAILED (exit $status). Last lines of ${log#"$KVFERRY_ROOT"/}:" >&2
  tail -n 25 "$log" | sed 's/^/    /' >&2
  return "$status"
}

# content_hash PATH...: one hash over names and contents of all files below the paths.
content_hash() {
  (cd "$KVFERRY_ROOT" && find "$@" -type f -not -path '*/__pycache__/*' -print0 |
    LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1)
}

# is_stamped FILE TEXT: does the stamp file hold exactly this text?
is_stamped() { [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]; }

stamp() {
  mkdir -p "$(dirname "$1")"
  echo "$2" >"$1"
}
