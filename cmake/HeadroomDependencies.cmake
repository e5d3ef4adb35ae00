# Small dependencies, header-only or static, so that a built program runs on another Linux machine
# that has nothing but the CUDA libraries.
find_package(Threads REQUIRED)
find_package(Eigen3 3.4 REQUIRED NO_MODULE)
find_package(fmt REQUIRED)
# An imported target for a static archive whose package would otherwise pick the shared library.
function(headroom_import_static target archive header)
  find_library(HEADROOM_LIB_${archive} NAMES lib${archive}.a REQUIRED)
  find_path(HEADROOM_INCLUDE_${archive} NAMES ${header} REQUIRED)
  mark_as_advanced(HEADROOM_LIB_${archive} HEADROOM_INCLUDE_${archive})
  add_library(${target} STATIC IMPORTED GLOBAL)
  set_target_properties(${target} PROPERTIES
    IMPORTED_LOCATION "${HEADROOM_LIB_${archive}}"
    INTERFACE_INCLUDE_DIRECTORIES "${HEADROOM_INCLUDE_${archive}}")
endfunction()

if(HEADROOM_BUILD_PROGRAMS OR HEADROOM_BUILD_TESTS)
  find_package(CLI11 REQUIRED)
  find_package(nlohmann_json REQUIRED)
  headroom_import_static(headroom_zlib z zlib.h)
  headroom_import_static(headroom_jpeg jpeg jpeglib.h)
  headroom_import_static(headroom_png png png.h)
  set_target_properties(headroom_png PROPERTIES INTERFACE_LINK_LIBRARIES "headroom_zlib;m")
endif()

include(HeadroomOpenMP)
