# SPDX-License-Identifier: Apache-2.0
# Every line of `json` is a fact, and the last one ends.
file(STRINGS ${json} lines)
file(READ ${json} raw)
if(raw AND NOT raw MATCHES "}\n$")
  message(FATAL_ERROR "${json} ends within a line")
endif()
foreach(line IN LISTS lines)
  string(JSON result ERROR_VARIABLE wrong GET "${line}" result)
  if(wrong)
    message(FATAL_ERROR "no whole line: ${line}: ${wrong}")
  endif()
endforeach()
