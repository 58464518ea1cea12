# SPDX-License-Identifier: Apache-2.0
# Sourced: CMake takes ccache when it is there. Paths are cached relative to the repository, so that
# all clones share one cache. Sourced by hand, it is to be in the repository.
if command -v ccache >/dev/null 2>&1; then
  export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER:-ccache}
  export CCACHE_BASEDIR=${CCACHE_BASEDIR:-${KVFERRY_ROOT:-$PWD}}
  export CCACHE_NOHASHDIR=1
  # What ccache asks for where headers are precompiled (the sanitizers' tests).
  export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}
fi
