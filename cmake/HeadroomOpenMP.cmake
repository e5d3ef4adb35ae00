# headroom_openmp: libgomp linked statically; under Clang the runtime of its own, which it finds
# itself. Only core/base/parallel.cpp is compiled with -fopenmp.
# Used by this build and by the installed package.
if(TARGET headroom_openmp)
  return()
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_library(headroom_openmp INTERFACE IMPORTED GLOBAL)
  set_target_properties(headroom_openmp PROPERTIES INTERFACE_LINK_OPTIONS -fopenmp)
  return()
endif()
execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -print-file-name=libgomp.a
                OUTPUT_VARIABLE headroom_libgomp OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT IS_ABSOLUTE "${headroom_libgomp}")
  message(FATAL_ERROR "libgomp.a is not beside ${CMAKE_CXX_COMPILER}: "
                      "a GNU compiler with its OpenMP runtime is needed")
endif()
add_library(headroom_openmp STATIC IMPORTED GLOBAL)
set_target_properties(headroom_openmp PROPERTIES
  IMPORTED_LOCATION "${headroom_libgomp}"
  INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS}")
