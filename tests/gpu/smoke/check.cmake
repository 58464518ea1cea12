# SPDX-License-Identifier: Apache-2.0
# Runs the smoke test with faults of the stand-in, and holds its exit, words and JSON to what is expected.
set(ENV{KVFERRY_FAKE_FAULTS} "${faults}")
execute_process(COMMAND ${program} --backend ${backend} --quick --json ${json} --seconds ${seconds}
  RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
message(STATUS "${text}")
if(NOT code EQUAL expected)
  message(FATAL_ERROR "it ended with ${code}, not ${expected}")
endif()
if(NOT text MATCHES "${pattern}")
  message(FATAL_ERROR "it does not say '${pattern}'")
endif()
include(${CMAKE_CURRENT_LIST_DIR}/whole_lines.cmake)
if(NOT lines)
  message(FATAL_ERROR "${json} has no facts")
endif()
