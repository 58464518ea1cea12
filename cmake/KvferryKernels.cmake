# SPDX-License-Identifier: Apache-2.0
# The kernels (gpu/src/kernels/pack_kernels.cu) compiled by nvcc and hipcc, and embedded in the library. CMake's own
# languages CUDA and HIP are not enabled: g++ compiles all host code, and nothing of a vendor's is linked.

set(KVFERRY_CUDA AUTO CACHE STRING "Compile the kernels with nvcc: AUTO (if there is one), ON or OFF")
set(KVFERRY_CUDA_ARCHITECTURES 75 80 89 90 100 CACHE STRING "sm numbers; PTX of the last that nvcc knows is added")
set(KVFERRY_HIP AUTO CACHE STRING "Compile the kernels with hipcc: AUTO (if there is one), ON or OFF")
set(KVFERRY_HIP_ARCHITECTURES gfx90a gfx940 gfx941 gfx942 gfx950 CACHE STRING "AMD processors")

# tools/setup_nvcc.sh puts a compiler into build/nvcc on a machine without a toolkit.
find_program(KVFERRY_NVCC nvcc
  HINTS ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin
  PATHS /usr/local/cuda ${PROJECT_SOURCE_DIR}/build/nvcc/nvidia/cu13)
find_program(KVFERRY_HIPCC hipcc HINTS ENV ROCM_PATH ENV HIP_PATH PATHS /opt/rocm PATH_SUFFIXES bin)

# A vendor's code was asked for and cannot be had, or it was to be had if possible.
function(kvferry_without what wanted why)
  if(wanted STREQUAL "ON")
    message(FATAL_ERROR "kvferry: ${what}=ON, but ${why}")
  endif()
  message(STATUS "kvferry: no ${what} kernels: ${why}")
endfunction()

# Appends to kernel_texts: for each architecture, pack_kernels.compute_NN.ptx, the text that nvcc hands to its assembler
# when it makes the image.
macro(kvferry_add_kernel_ptx kernel headers)
  foreach(arch IN LISTS cuda_architectures)
    set(file ${CMAKE_CURRENT_BINARY_DIR}/pack_kernels.compute_${arch}.ptx)
    add_custom_command(OUTPUT ${file}
      COMMAND ${KVFERRY_NVCC} -ptx ${cuda_flags} -arch=compute_${arch} -o ${file} ${kernel}
      DEPENDS ${kernel} ${headers}
      COMMENT "nvcc ${release}: PTX of the kernels for compute_${arch}"
      VERBATIM)
    list(APPEND kernel_texts ${file})
  endforeach()
endmacro()

# Sets cuda_fatbin_file, cuda_toolkit_version and cuda_architectures (ascending), cuda_numbers and num_cuda_architectures.
macro(kvferry_compile_cuda kernel headers)
  set(cuda_fatbin_file ${CMAKE_CURRENT_BINARY_DIR}/no_kernels)
  set(cuda_toolkit_version 0)
  set(cuda_architectures "")
  if(KVFERRY_CUDA STREQUAL "OFF")
    kvferry_without(KVFERRY_CUDA AUTO "switched off")
  elseif(NOT KVFERRY_NVCC)
    kvferry_without(KVFERRY_CUDA ${KVFERRY_CUDA} "nvcc is not found (PATH, CUDA_HOME, tools/setup_nvcc.sh)")
  else()
    execute_process(COMMAND ${KVFERRY_NVCC} --version OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCH "release ([0-9]+)\\.([0-9]+)" release "${text}")
    math(EXPR cuda_toolkit_version "${CMAKE_MATCH_1} * 1000 + ${CMAKE_MATCH_2} * 10")
    execute_process(COMMAND ${KVFERRY_NVCC} --list-gpu-code OUTPUT_VARIABLE known COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCHALL "sm_[0-9]+" known "${known}")
    set(unknown "")
    foreach(arch IN LISTS KVFERRY_CUDA_ARCHITECTURES)
      if(sm_${arch} IN_LIST known)
        list(APPEND cuda_architectures ${arch})
      else()
        string(APPEND unknown " sm_${arch}")
      endif()
    endforeach()
    if(unknown)
      message(STATUS "kvferry: nvcc ${release} does not know, and leaves out:${unknown}")
    endif()
    if(cuda_toolkit_version LESS 12040 OR NOT cuda_architectures)
      kvferry_without(KVFERRY_CUDA ${KVFERRY_CUDA} "nvcc ${release} is older than 12.4 or knows none of the architectures")
      set(cuda_toolkit_version 0)
      set(cuda_architectures "")
    endif()
  endif()
  if(cuda_architectures)
    set(targets "")
    foreach(arch IN LISTS cuda_architectures)
      list(APPEND targets -gencode arch=compute_${arch},code=sm_${arch})
    endforeach()
    list(SORT cuda_architectures COMPARE NATURAL)
    list(GET cuda_architectures -1 newest)
    list(APPEND targets -gencode arch=compute_${newest},code=compute_${newest})
    set(cuda_fatbin_file ${CMAKE_CURRENT_BINARY_DIR}/pack_kernels.fatbin)
    set(cuda_flags -std=c++17 -O3 -allow-unsupported-compiler -I ${CMAKE_CURRENT_SOURCE_DIR}/src)
    # Not compressed, so that the test code_objects_test.cpp can read it; a wheel is compressed anyway.
    add_custom_command(OUTPUT ${cuda_fatbin_file}
      COMMAND ${KVFERRY_NVCC} -fatbin ${cuda_flags} -no-compress --threads 2
        -Xptxas --warn-on-spills ${targets} -o ${cuda_fatbin_file} ${kernel}
      DEPENDS ${kernel} ${headers}
      COMMENT "nvcc ${release}: kernels for sm_${cuda_architectures}"
      VERBATIM)
    message(STATUS "kvferry: nvcc ${release} compiles the kernels for sm_${cuda_architectures} and PTX of the last")
    kvferry_add_kernel_ptx(${kernel} "${headers}")
  endif()
  list(LENGTH cuda_architectures num_cuda_architectures)
  list(JOIN cuda_architectures ", " cuda_numbers)
endmacro()

# Whether hipcc compiles a program for `arch`; asked once per compiler and architecture.
function(kvferry_probe_hip arch result)
  string(MAKE_C_IDENTIFIER "KVFERRY_HIP_KNOWS_${arch}_${KVFERRY_HIPCC}" answer)
  if(NOT DEFINED CACHE{${answer}})
    set(probe ${CMAKE_CURRENT_BINARY_DIR}/probe.hip)
    file(WRITE ${probe} "#include <hip/hip_runtime.h>\nextern \"C\" __global__ void probe() {}\n")
    execute_process(
      COMMAND ${CMAKE_COMMAND} -E env HIP_PLATFORM=amd
        ${KVFERRY_HIPCC} --genco --offload-arch=${arch} -O1 -o ${probe}.${arch} ${probe}
      RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
    if(status EQUAL 0)
      set(${answer} ON CACHE INTERNAL "")
    else()
      set(${answer} OFF CACHE INTERNAL "")
    endif()
  endif()
  set(${result} ${${answer}} PARENT_SCOPE)
endfunction()

# Sets hip_files, hip_architectures, hip_embeds, hip_entries and num_hip_objects.
macro(kvferry_compile_hip kernel headers)
  set(hip_files "")
  set(hip_architectures "")
  set(hip_embeds "")
  set(hip_entries "")
  if(KVFERRY_HIP STREQUAL "OFF")
    kvferry_without(KVFERRY_HIP AUTO "switched off")
  elseif(NOT KVFERRY_HIPCC)
    kvferry_without(KVFERRY_HIP ${KVFERRY_HIP} "hipcc is not found (PATH, ROCM_PATH; Debian's package hipcc)")
  else()
    set(refused "")
    set(hip_command ${CMAKE_COMMAND} -E env HIP_PLATFORM=amd ${KVFERRY_HIPCC})
    set(hip_flags -std=c++17 -O3 -I ${CMAKE_CURRENT_SOURCE_DIR}/src)
    foreach(arch IN LISTS KVFERRY_HIP_ARCHITECTURES)
      kvferry_probe_hip(${arch} known)
      if(NOT known)
        string(APPEND refused " ${arch}")
        continue()
      endif()
      set(file ${CMAKE_CURRENT_BINARY_DIR}/pack_kernels.${arch}.hsaco)
      add_custom_command(OUTPUT ${file}
        COMMAND ${hip_command} --genco --offload-arch=${arch} ${hip_flags} -o ${file} -x hip ${kernel}
        DEPENDS ${kernel} ${headers}
        COMMENT "hipcc: kernels for ${arch}"
        VERBATIM)
      # What hipcc hands to its assembler when it makes that.
      set(text ${CMAKE_CURRENT_BINARY_DIR}/pack_kernels.${arch}.s)
      add_custom_command(OUTPUT ${text}
        COMMAND ${hip_command} -S --cuda-device-only -Wno-unused-command-line-argument --offload-arch=${arch} ${hip_flags}
          -o ${text} -x hip ${kernel}
        DEPENDS ${kernel} ${headers}
        COMMENT "hipcc: assembly of the kernels for ${arch}"
        VERBATIM)
      list(APPEND kernel_texts ${text})
      list(APPEND hip_files ${file})
      list(APPEND hip_architectures ${arch})
      string(APPEND hip_embeds "KVFERRY_EMBED(kKvferryHip_${arch}, \"${file}\")\n")
      string(APPEND hip_entries
        "\n      HipCodeObject{\"${arch}\", between(kKvferryHip_${arch}, kKvferryHip_${arch}End)},")
    endforeach()
    if(refused)
      message(STATUS "kvferry: ${KVFERRY_HIPCC} refuses, and leaves to hipRTC at run time:${refused}")
    endif()
    if(hip_architectures)
      message(STATUS "kvferry: hipcc compiles the kernels for ${hip_architectures}")
    else()
      kvferry_without(KVFERRY_HIP ${KVFERRY_HIP} "hipcc compiles for none of ${KVFERRY_HIP_ARCHITECTURES}")
    endif()
  endif()
  list(LENGTH hip_architectures num_hip_objects)
endmacro()

# The source in one text without includes; kernels in files of their own come where they are included.
function(kvferry_flatten output)
  set(text "")
  foreach(file IN LISTS ARGN)
    file(READ ${file} part)
    if(file MATCHES "\\.cu$")
      foreach(name IN ITEMS pack_bulk.cuh co_run.cuh)
        file(READ ${dir}/${name} kernels_text)
        string(REPLACE "#include \"kernels/${name}\"\n" "${kernels_text}" part "${part}")
      endforeach()
    endif()
    string(REGEX REPLACE "#pragma once\n|#include \"[^\n]*\n" "" part "${part}")
    string(APPEND text "${part}")
  endforeach()
  file(CONFIGURE OUTPUT ${output} CONTENT "@text@" @ONLY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ARGN})
endfunction()

# kvferry_embed_kernels(TARGET): adds what gpu/src/kernels/code_objects.hpp declares.
function(kvferry_embed_kernels target)
  set(dir ${CMAKE_CURRENT_SOURCE_DIR}/src/kernels)
  set(kernel ${dir}/pack_kernels.cu)
  set(headers ${dir}/pack_arguments.hpp ${dir}/pack_addressing.hpp ${dir}/tag_weights.hpp
    ${dir}/pack_walk.hpp ${dir}/co_run_work.hpp)
  set(bulk ${dir}/pack_bulk.cuh)
  set(co_run ${dir}/co_run.cuh)
  file(CONFIGURE OUTPUT no_kernels CONTENT "")
  set(kernel_texts "")
  kvferry_compile_cuda(${kernel} "${headers};${bulk};${co_run}")
  kvferry_compile_hip(${kernel} "${headers};${co_run}")
  # What interpreters read (tests/ptx); built only for them.
  if(kernel_texts)
    add_custom_target(kvferry_kernel_texts DEPENDS ${kernel_texts})
  endif()

  set(kernel_source_file ${CMAKE_CURRENT_BINARY_DIR}/pack_kernels.txt)
  kvferry_flatten(${kernel_source_file} ${headers} ${kernel})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${bulk} ${co_run})

  set(embedding ${CMAKE_CURRENT_BINARY_DIR}/code_objects.cpp)
  configure_file(${dir}/code_objects.cpp.in ${embedding} @ONLY)
  target_sources(${target} PRIVATE ${embedding})
  set_source_files_properties(${embedding} PROPERTIES
    OBJECT_DEPENDS "${kernel_source_file};${cuda_fatbin_file};${hip_files}"
    SKIP_LINTING ON SKIP_UNITY_BUILD_INCLUSION ON)
  # For the test that looks at what was embedded.
  set_target_properties(${target} PROPERTIES
    KVFERRY_CUDA_EMBEDDED "${cuda_architectures}" KVFERRY_HIP_EMBEDDED "${hip_architectures}")
endfunction()
