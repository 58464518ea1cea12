# SPDX-License-Identifier: Apache-2.0
# `cmake --install BUILD --component development`: headers, static libraries, and what find_package(kvferry) reads. The
# wheel takes the component "python" only.

include(CMakePackageConfigHelpers)
set(kvferry_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvferry)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/kvferryConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/kvferryConfig.cmake INSTALL_DESTINATION ${kvferry_package_dir}
  NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# Before 1.0 every minor release may change the interface.
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/kvferryConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(EXPORT kvferry NAMESPACE kvferry:: FILE kvferryTargets.cmake
  DESTINATION ${kvferry_package_dir} COMPONENT development)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kvferryConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/kvferryConfigVersion.cmake
  ${CMAKE_CURRENT_LIST_DIR}/FindHwloc.cmake DESTINATION ${kvferry_package_dir} COMPONENT development)
