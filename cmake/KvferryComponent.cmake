# SPDX-License-Identifier: Apache-2.0
# One shape for every component and every test.

include(GNUInstallDirs)
find_package(Threads REQUIRED)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# Flags of everything we compile. An interface target, so that third-party targets stay free of them. Warnings are errors
# only where CMake's own CMAKE_COMPILE_WARNING_AS_ERROR says so: in the presets of `make test`, not on a user's machine,
# whose compiler may know warnings that ours do not.
add_library(kvferry_flags INTERFACE)
target_compile_options(kvferry_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 and 13 see moved-from members of std::optional and std::variant as uninitialised (GCC bug 80635).
  target_compile_options(kvferry_flags INTERFACE -Wno-maybe-uninitialized)
  # Position-independent code of GCC calls even the functions of its own file through a symbol that
  # somebody might replace, and inlines none of them, unless it is told that nobody does.
  target_compile_options(kvferry_flags INTERFACE
    $<$<CONFIG:Release,RelWithDebInfo>:-fno-semantic-interposition>)
endif()
if(KVFERRY_THREAD_SAFETY)
  target_compile_options(kvferry_flags INTERFACE -Wthread-safety)
endif()
if(KVFERRY_TEST_HOOKS)
  target_compile_definitions(kvferry_flags INTERFACE KVFERRY_TEST_HOOKS=1)
endif()
if(KVFERRY_SANITIZE)
  target_compile_options(kvferry_flags INTERFACE -fsanitize=${KVFERRY_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(kvferry_flags INTERFACE -fsanitize=${KVFERRY_SANITIZE})
  if(KVFERRY_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # As GCC says it.
    target_compile_definitions(kvferry_flags INTERFACE __SANITIZE_THREAD__=1)
  endif()
  # It links these large programs in a third of the time.
  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=lld KVFERRY_HAS_LLD)
  if(KVFERRY_HAS_LLD)
    target_link_options(kvferry_flags INTERFACE -fuse-ld=lld)
  endif()
endif()

# What most sources include.
set(KVFERRY_STANDARD_HEADERS <algorithm> <array> <atomic> <chrono> <condition_variable> <cstdint> <deque> <filesystem>
    <fstream> <functional> <map> <memory> <mutex> <optional> <span> <stdexcept> <string> <string_view> <thread>
    <unordered_map> <utility> <variant> <vector>)

# kvferry_precompile_headers(TARGET [header ...]): with KVFERRY_PCH=all, the target has precompiled headers of its own: the
# standard ones, and these.
function(kvferry_precompile_headers target)
  if(KVFERRY_PCH STREQUAL "all")
    target_precompile_headers(${target} PRIVATE ${KVFERRY_STANDARD_HEADERS} ${ARGN})
  endif()
endfunction()

# kvferry_compile_together(TARGET SCOPE): with KVFERRY_UNITY=all or =SCOPE, eight sources each are compiled as one, which
# takes half of the time. So a name with internal linkage must not be in two sources of a target: the error is a
# redefinition, in `make test` only.
function(kvferry_compile_together target scope)
  if(KVFERRY_UNITY STREQUAL "all" OR KVFERRY_UNITY STREQUAL scope)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  endif()
endfunction()

# kvferry_add_component(NAME [SOURCES ...] [DEPENDS component ...] [OPTIONS option ...])
#   A static library kvferry_NAME with the include root NAME/include. Only DEPENDS (and what they depend
#   on) are on its include path, so that an include of a higher layer does not compile. Installed as
#   kvferry::NAME by the install component "development" (KvferryInstall.cmake).
#   OPTIONS are of the compiler, for these sources only.
#   With KVFERRY_PCH=all the standard headers are compiled once, which halves the time without optimisation. Components share
#   those of base; one with options of its own has its own.
function(kvferry_add_component name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;OPTIONS" ${ARGN})
  if(ARG_SOURCES)
    add_library(kvferry_${name} STATIC ${ARG_SOURCES})
    set(scope PUBLIC)
    target_link_libraries(kvferry_${name} PRIVATE $<BUILD_INTERFACE:kvferry_flags>)
    target_compile_options(kvferry_${name} PRIVATE ${ARG_OPTIONS})
    kvferry_compile_together(kvferry_${name} product)
    if(KVFERRY_BUILD_FUZZERS)
      # The fuzzers follow what the product does. Tests without this cost a fifth less to compile.
      target_compile_options(kvferry_${name} PRIVATE -fsanitize=fuzzer-no-link)
    endif()
    if(name STREQUAL "base" OR ARG_OPTIONS)
      kvferry_precompile_headers(kvferry_${name})
    elseif(KVFERRY_PCH STREQUAL "all")
      target_precompile_headers(kvferry_${name} REUSE_FROM kvferry_base)
    endif()
  else()
    add_library(kvferry_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_compile_features(kvferry_${name} ${scope} cxx_std_20)
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/include)
    target_include_directories(kvferry_${name} ${scope}
      $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
  endif()
  target_link_libraries(kvferry_${name} ${scope} Threads::Threads)
  foreach(dep IN LISTS ARG_DEPENDS)
    target_link_libraries(kvferry_${name} ${scope} kvferry_${dep})
  endforeach()
  add_library(kvferry::${name} ALIAS kvferry_${name})
  set_target_properties(kvferry_${name} PROPERTIES EXPORT_NAME ${name})
  install(TARGETS kvferry_${name} EXPORT kvferry ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
endfunction()

# What is to be fast is the code under test. A sanitizer's report needs the lines of that code. Those of the test, whose
# name the report has, cost a seventh of a test's compilation.
set(KVFERRY_TEST_OPTIONS -O0)
if(KVFERRY_SANITIZE)
  list(APPEND KVFERRY_TEST_OPTIONS -g0)
endif()
# A test's own pointers are checked by AddressSanitizer. UndefinedBehaviorSanitizer's checks of each access, which the
# product keeps, are a quarter of a test's compilation.
if(KVFERRY_SANITIZE MATCHES "undefined")
  list(APPEND KVFERRY_TEST_OPTIONS -fno-sanitize=null,alignment,object-size,vptr)
endif()

# What tests include, compiled once; most of their compile time.
set(KVFERRY_TEST_HEADERS <gtest/gtest.h> ${KVFERRY_STANDARD_HEADERS} <random>)

# kvferry_test_headers: for all tests without headers of their own. A program without definitions of its own, because
# precompiled headers are taken only where flags and definitions are the same.
function(kvferry_add_test_headers)
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/test_headers.cpp CONTENT "")
  add_executable(kvferry_test_headers EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/test_headers.cpp)
  target_link_libraries(kvferry_test_headers PRIVATE kvferry_flags GTest::gtest GTest::gtest_main)
  target_compile_options(kvferry_test_headers PRIVATE ${KVFERRY_TEST_OPTIONS})
  target_precompile_headers(kvferry_test_headers PRIVATE ${KVFERRY_TEST_HEADERS})
endfunction()

# kvferry_add_test(NAME SOURCES ... DEPENDS component ... [HEADERS file ...] [NEED_HOOKS file ...] [WITH_THREADS file ...])
#   One GoogleTest program, known to CTest by its cases. HEADERS: what most of its sources include and brings much of the
#   product along; compiled once, with the templates that it needs, a source takes less than half of the time. NEED_HOOKS: sources, without .cpp, that hold threads at pause
#   points or make operations fail; they are left out where KVFERRY_TEST_HOOKS is off. WITH_THREADS: the only sources whose
#   code has more threads than its caller's; with KVFERRY_TESTS=threads the others are left out.
function(kvferry_add_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;HEADERS;NEED_HOOKS;WITH_THREADS" ${ARGN})
  if(NOT KVFERRY_TEST_HOOKS)
    foreach(source IN LISTS ARG_NEED_HOOKS)
      list(FILTER ARG_SOURCES EXCLUDE REGEX "(^|/)${source}\\.cpp$")
    endforeach()
  endif()
  if(ARG_WITH_THREADS AND KVFERRY_TESTS STREQUAL "threads")
    list(JOIN ARG_WITH_THREADS "|" with_threads)
    list(FILTER ARG_SOURCES INCLUDE REGEX "(^|/)(${with_threads})\\.cpp$")
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE kvferry_flags GTest::gtest GTest::gtest_main)
  foreach(dep IN LISTS ARG_DEPENDS)
    target_link_libraries(${name} PRIVATE kvferry_${dep})
  endforeach()
  target_compile_options(${name} PRIVATE ${KVFERRY_TEST_OPTIONS})
  if(ARG_HEADERS AND NOT KVFERRY_PCH STREQUAL "nothing")
    target_precompile_headers(${name} PRIVATE ${KVFERRY_TEST_HEADERS} ${ARG_HEADERS})
  elseif(NOT KVFERRY_PCH STREQUAL "nothing")
    if(NOT TARGET kvferry_test_headers)
      kvferry_add_test_headers()
    endif()
    target_precompile_headers(${name} REUSE_FROM kvferry_test_headers)
  endif()
  kvferry_compile_together(${name} tests)
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300)
endfunction()
