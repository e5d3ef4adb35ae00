# cmake --install: the libraries, the public headers, a package for find_package(headroom), and
# the programs.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(headroom_targets headroom headroom_core headroom_nn headroom_optim headroom_kernels
    headroom_kernels_cpu)
if(HEADROOM_WITH_CUDA)
  list(APPEND headroom_targets headroom_kernels_cuda)
endif()
# Nothing is installed from a build folder that lacks a part of it, as after `./dev train` alone.
set(headroom_built headroom_core headroom_nn headroom_optim headroom_kernels_cpu)
if(TARGET train)
  list(APPEND headroom_built train memory-compare memory-watch)
endif()
list(TRANSFORM headroom_built REPLACE "(.+)" "$<TARGET_FILE:\\1>")
install(CODE "
  set(files \"${headroom_built}\")
  foreach(file IN LISTS files)
    if(NOT EXISTS \"\${file}\")
      message(FATAL_ERROR \"\${file} is not built: run `cmake --build ${PROJECT_BINARY_DIR}` \"
              \"first, or `./dev install PREFIX`, which does both\")
    endif()
  endforeach()")
install(TARGETS ${headroom_targets} EXPORT headroom ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY core nn optim DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/headroom"
        FILES_MATCHING PATTERN "*.h")
install(FILES kernels/register.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/headroom/kernels")
if(TARGET train)
  install(TARGETS train memory-compare memory-watch RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

set(headroom_package "${CMAKE_INSTALL_LIBDIR}/cmake/headroom")
install(EXPORT headroom DESTINATION "${headroom_package}" NAMESPACE headroom::)
configure_package_config_file(cmake/headroom-config.cmake.in
  "${PROJECT_BINARY_DIR}/package/headroom-config.cmake" INSTALL_DESTINATION "${headroom_package}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/package/headroom-config-version.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/package/headroom-config.cmake"
              "${PROJECT_BINARY_DIR}/package/headroom-config-version.cmake"
              cmake/HeadroomOpenMP.cmake
        DESTINATION "${headroom_package}")
