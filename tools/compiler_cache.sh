# SPDX-License-Identifier: Apache-2.0
# To be sourced: makes CMake use ccache if it is installed. Paths are cached relative to the repository, so that
# all clones share one cache. If you source it by hand, do so in the repository.
if command -v ccache >/dev/null 2>&1; then
  export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER:-ccache}
  export CCACHE_BASEDIR=${CCACHE_BASEDIR:-${KVFERRY_ROOT:-$PWD}}
  export CCACHE_NOHASHDIR=1
  # ccache needs this if headers are precompiled (the tests of the sanitizers).
  export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}
fi
