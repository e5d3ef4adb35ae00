# User options, the language standard and the flags that every target shares.
set(HEADROOM_CUDA AUTO CACHE STRING "CUDA backend: AUTO builds it when all it needs is found")
set_property(CACHE HEADROOM_CUDA PROPERTY STRINGS AUTO ON OFF)
option(HEADROOM_WERROR "Treat warnings as errors" ${PROJECT_IS_TOP_LEVEL})
option(HEADROOM_BUILD_PROGRAMS "Build train and the examples" ${PROJECT_IS_TOP_LEVEL})
option(HEADROOM_BUILD_TESTS "Build the tests and benchmarks" ${PROJECT_IS_TOP_LEVEL})
set(HEADROOM_SANITIZE "" CACHE STRING "Sanitizers for host code, e.g. address,undefined")
option(HEADROOM_FUZZ "Build the fuzzers of tests/fuzz; needs clang++ with libFuzzer" OFF)

# Measured: -march=native was a quarter slower than x86-64-v3, the x86-64 baseline three times.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
  set(headroom_default_cpu_arch "x86-64-v3")
else()
  set(headroom_default_cpu_arch "")
endif()
set(HEADROOM_CPU_ARCH "${headroom_default_cpu_arch}" CACHE STRING
    "-march of the CPU kernels alone; empty leaves the compiler's default")

if(NOT HEADROOM_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "HEADROOM_CUDA takes AUTO, ON or OFF, not '${HEADROOM_CUDA}'")
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  message(FATAL_ERROR "g++ 12 or later is needed, not ${CMAKE_CXX_COMPILER_VERSION}")
endif()

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, Debug or RelWithDebInfo" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")

# Binaries travel between machines, so a release carries no debug information and a debug build
# only line numbers and frames (-g1).
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1 -fno-omit-frame-pointer -D_GLIBCXX_ASSERTIONS")
set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")
set(CMAKE_CUDA_FLAGS_DEBUG "-O1 -g1 -lineinfo")

find_program(HEADROOM_CCACHE ccache DOC "ccache, used when it is found")
mark_as_advanced(HEADROOM_CCACHE)
if(HEADROOM_CCACHE)
  foreach(language CXX CUDA)
    if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER "${HEADROOM_CCACHE}")
    endif()
  endforeach()
endif()

if(HEADROOM_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "HEADROOM_FUZZ needs clang++, not ${CMAKE_CXX_COMPILER}")
  endif()
  # What the readers are made of reports its coverage; only the fuzzers link libFuzzer's main().
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>")
endif()

if(HEADROOM_SANITIZE)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${HEADROOM_SANITIZE}>"
                      "$<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>")
  # GCC's manual: sanitizers raise its false positives, here inside <regex>.
  add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>")
  add_link_options("-fsanitize=${HEADROOM_SANITIZE}")
endif()
