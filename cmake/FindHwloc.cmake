# SPDX-License-Identifier: Apache-2.0
# hwloc as the target Hwloc::hwloc. Installed too: it has no package configuration of its own, and who links kvferry's
# static libraries needs it.

# The suffixes: what tools/carry.py collects for a machine without a network.
find_path(KVFERRY_HWLOC_INCLUDE hwloc.h PATH_SUFFIXES share/hwloc/include)
find_library(KVFERRY_HWLOC NAMES hwloc libhwloc.so.15 PATH_SUFFIXES share/hwloc/lib)
mark_as_advanced(KVFERRY_HWLOC_INCLUDE KVFERRY_HWLOC)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Hwloc REQUIRED_VARS KVFERRY_HWLOC KVFERRY_HWLOC_INCLUDE
  REASON_FAILURE_MESSAGE "Debian has it as libhwloc-dev, which tools/setup_system.sh installs")

if(Hwloc_FOUND AND NOT TARGET Hwloc::hwloc)
  add_library(Hwloc::hwloc UNKNOWN IMPORTED)
  set_target_properties(Hwloc::hwloc PROPERTIES
    IMPORTED_LOCATION ${KVFERRY_HWLOC} INTERFACE_INCLUDE_DIRECTORIES ${KVFERRY_HWLOC_INCLUDE})
endif()
