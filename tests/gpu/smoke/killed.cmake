# SPDX-License-Identifier: Apache-2.0
# Kills the smoke test after ever longer times: what its file has by then are whole lines.
set(num_checked 0)
foreach(seconds 0.2 0.4 0.7 1.1 1.6 2.2)
  execute_process(COMMAND ${program} --backend cuda_stand_in --quick --json ${json} --seconds 30
    TIMEOUT ${seconds} RESULT_VARIABLE code OUTPUT_QUIET)
  if(EXISTS ${json})
    include(${CMAKE_CURRENT_LIST_DIR}/whole_lines.cmake)
    math(EXPR num_checked "${num_checked} + 1")
  endif()
endforeach()
if(num_checked EQUAL 0)
  message(FATAL_ERROR "it never wrote a fact")
endif()
