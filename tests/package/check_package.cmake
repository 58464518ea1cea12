# SPDX-License-Identifier: Apache-2.0
# cmake -DBUILD= -DSOURCE= -DSCRATCH= -DCOMPILER= -DLAUNCHER= -DPREFIX_PATH= -DGENERATOR= -P check_package.cmake

function(must)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

foreach(folder installed moved example)
  file(REMOVE_RECURSE ${SCRATCH}/${folder})
endforeach()
execute_process(
  COMMAND ${CMAKE_COMMAND} --install ${BUILD} --component development --prefix ${SCRATCH}/installed
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)

# A package is made on one machine and used on another: nothing of it may name this tree or its prefix.
file(RENAME ${SCRATCH}/installed ${SCRATCH}/moved)
file(GLOB_RECURSE files ${SCRATCH}/moved/*.cmake)
foreach(file IN LISTS files)
  file(READ ${file} text)
  string(FIND "${text}" "${SOURCE}" found)
  if(NOT found EQUAL -1)
    message(FATAL_ERROR "${file} names ${SOURCE}")
  endif()
endforeach()
file(GLOB_RECURSE headers RELATIVE ${SCRATCH}/moved/include ${SCRATCH}/moved/include/*)
foreach(header IN LISTS headers)
  if(NOT header MATCHES "^kvferry/([a-z_]+/)+[a-z0-9_]+\\.hpp$")
    message(FATAL_ERROR "${header} was installed, and is no header of a component")
  endif()
endforeach()

# A copy, so that nothing is found by its place in this tree.
file(COPY ${SOURCE}/examples/cpp DESTINATION ${SCRATCH}/example)
must(${CMAKE_COMMAND} -G ${GENERATOR} -S ${SCRATCH}/example/cpp -B ${SCRATCH}/example/build
  "-DCMAKE_PREFIX_PATH=${SCRATCH}/moved;${PREFIX_PATH}"
  -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER} -DCMAKE_CXX_FLAGS=-Wall\ -Wextra\ -Werror)
must(${CMAKE_COMMAND} --build ${SCRATCH}/example/build)
must(${SCRATCH}/example/build/offload)
