# SPDX-License-Identifier: Apache-2.0
# The clang of the presets that want one: 14, which is tested, or the newest that a distribution has. It has to have
# libFuzzer, and so the sanitizers (Debian: libclang-rt-14-dev).
if(CMAKE_CXX_COMPILER MATCHES clang)
  return()
endif()
set(fuzzer "extern \"C\" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }\n")
file(WRITE ${CMAKE_BINARY_DIR}/fuzzer.cpp "${fuzzer}")
foreach(name IN ITEMS clang++-14 clang++-20 clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++)
  execute_process(COMMAND ${name} -fsanitize=fuzzer,address ${CMAKE_BINARY_DIR}/fuzzer.cpp -o ${CMAKE_BINARY_DIR}/fuzzer
    RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  if(NOT failed)
    set(CMAKE_CXX_COMPILER ${name})
    return()
  endif()
endforeach()
message(FATAL_ERROR "no clang++ here links -fsanitize=fuzzer,address; expected clang 14 or newer with libclang-rt; "
  "tools/setup_system.sh installs both")
