#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Print the arguments, an empty one, and the environment, each ended by a zero byte: what a script would have run.
printf '%s\0' "$@" ''
env -0
