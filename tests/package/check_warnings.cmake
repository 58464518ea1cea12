# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE= -DSCRATCH= -DCOMPILER= -DLAUNCHER= -P check_warnings.cmake
# A compiler that warns of every file stops what `make test` builds, and does not stop what is built on other machines.

set(warning ${SCRATCH}/warning.hpp)
file(WRITE ${warning} "static int unused_in_every_file() { return 0; }\n")

# Sets built to whether one source compiles, in a build that is configured with these arguments.
function(compile_one name)
  set(build ${SCRATCH}/${name})
  file(REMOVE_RECURSE ${build})
  execute_process(
    COMMAND ${CMAKE_COMMAND} ${ARGN} -G Ninja -B ${build} -DCMAKE_CXX_COMPILER=${COMPILER}
      -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER} "-DCMAKE_CXX_FLAGS=-include ${warning}" -DKVFERRY_BUILD_TESTS=OFF
      -DKVFERRY_BUILD_BENCH=OFF -DKVFERRY_PCH=nothing -DKVFERRY_CUDA=OFF -DKVFERRY_HIP=OFF
    WORKING_DIRECTORY ${SOURCE} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  execute_process(
    COMMAND ${CMAKE_COMMAND} --build ${build} --target base/CMakeFiles/kvferry_base.dir/src/check.cpp.o
    RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(NOT said MATCHES "unused_in_every_file")
    message(FATAL_ERROR "${name}: the compiler does not warn: ${said}")
  endif()
  if(status EQUAL 0)
    set(built ON PARENT_SCOPE)
  else()
    set(built OFF PARENT_SCOPE)
  endif()
endfunction()

# A user's own build, and the wheel's; what tools/gpu_check.py builds on a machine that we do not know.
compile_one(plain -S ${SOURCE})
if(NOT built)
  message(FATAL_ERROR "a warning stops a user's build")
endif()
compile_one(gpu-check --preset gpu-check)
if(NOT built)
  message(FATAL_ERROR "a warning stops the build of gpu-check")
endif()
compile_one(host-debug --preset host-debug)
if(built)
  message(FATAL_ERROR "a warning does not stop the build of host-debug")
endif()
