# How targets are made here: globbed sources, warnings, static linking.

# Sources below the current folder that match the patterns, re-globbed at every build.
function(headroom_glob out)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS LIST_DIRECTORIES false ${ARGN})
  set(${out} "${sources}" PARENT_SCOPE)
endfunction()

function(headroom_set_warnings target)
  set(warnings -Wall -Wextra)
  if(HEADROOM_WERROR)
    list(APPEND warnings -Werror)
    target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings>")
  endif()
  list(JOIN warnings "," cuda_warnings)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${cuda_warnings}>")
endfunction()

# headroom_add_library(NAME SOURCES ... PUBLIC ... PRIVATE ...): a static library over the given
# sources, or an interface library while there are none.
function(headroom_add_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  if(arg_SOURCES)
    add_library(${name} STATIC ${arg_SOURCES})
    target_include_directories(${name} PUBLIC
      "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>" "$<INSTALL_INTERFACE:include/headroom>")
    target_link_libraries(${name} PUBLIC ${arg_PUBLIC})
    target_compile_features(${name} PUBLIC cxx_std_20)
    # Header-only, and in no public header: nothing for those who link the library.
    foreach(library IN LISTS arg_PRIVATE)
      target_link_libraries(${name} PRIVATE "$<BUILD_INTERFACE:${library}>")
    endforeach()
    headroom_set_warnings(${name})
  else()
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE
      "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>" "$<INSTALL_INTERFACE:include/headroom>")
    target_link_libraries(${name} INTERFACE ${arg_PUBLIC})
  endif()
endfunction()

# headroom_add_program(NAME SOURCES ... LINK ...): a program in <build>/bin that carries the C++
# runtime with it, unless a sanitizer needs the shared one.
function(headroom_add_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LINK})
  headroom_set_warnings(${name})
  if(NOT HEADROOM_SANITIZE)
    target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc
                        "LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map")
  endif()
endfunction()
