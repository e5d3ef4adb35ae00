# Decides whether the CUDA backend is built, says which and why, and makes its imported targets:
# headroom_cuda_libs (static runtime, cuBLAS, cuBLASLt, cuDNN) and headroom_cudnn_frontend.
# Sets HEADROOM_WITH_CUDA.
set(HEADROOM_WITH_CUDA OFF)

set(headroom_deps "${PROJECT_SOURCE_DIR}/.deps")
set(headroom_cuda_hints
    "${CUDAToolkit_ROOT}" "$ENV{CUDAToolkit_ROOT}" "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}")
list(REMOVE_ITEM headroom_cuda_hints "")

# Fills HEADROOM_NVCC and the cache variables of headers and libraries; appends what is missing
# to headroom_cuda_missing.
macro(headroom_find_cuda_parts)
  set(headroom_cuda_missing "")
  if(CMAKE_CUDA_COMPILER)
    set(HEADROOM_NVCC "${CMAKE_CUDA_COMPILER}" CACHE FILEPATH "The CUDA compiler")
  endif()
  find_program(HEADROOM_NVCC nvcc
               HINTS "$ENV{CUDACXX}" ${headroom_cuda_hints} ENV PATH
               PATHS /usr/local/cuda "${headroom_deps}/cuda" PATH_SUFFIXES bin)
  if(HEADROOM_NVCC)
    get_filename_component(headroom_cuda_root "${HEADROOM_NVCC}" REALPATH)
    get_filename_component(headroom_cuda_root "${headroom_cuda_root}/../.." ABSOLUTE)
    set(headroom_cuda_search ${headroom_cuda_hints} "${headroom_cuda_root}")
    set(headroom_lib_suffixes lib64 lib lib/x64 targets/x86_64-linux/lib)
    find_path(HEADROOM_CUDNN_INCLUDE cudnn.h HINTS "$ENV{CUDNN_HOME}" ${headroom_cuda_search}
              PATHS "${headroom_deps}/cuda" PATH_SUFFIXES include)
    foreach(library cudnn cublasLt cublas)
      find_library(HEADROOM_LIB_${library} NAMES ${library}
                   HINTS "$ENV{CUDNN_HOME}" ${headroom_cuda_search}
                   PATHS "${headroom_deps}/cuda" PATH_SUFFIXES ${headroom_lib_suffixes})
      mark_as_advanced(HEADROOM_LIB_${library})
      if(NOT HEADROOM_LIB_${library})
        list(APPEND headroom_cuda_missing "lib${library}")
      endif()
    endforeach()
    if(NOT HEADROOM_CUDNN_INCLUDE)
      list(APPEND headroom_cuda_missing "cudnn.h")
    endif()
  else()
    list(APPEND headroom_cuda_missing "nvcc")
  endif()
  find_path(HEADROOM_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h
            HINTS "${headroom_deps}/cudnn-frontend" ${headroom_cuda_search} PATH_SUFFIXES include)
  if(NOT HEADROOM_CUDNN_FRONTEND_INCLUDE)
    list(APPEND headroom_cuda_missing "cudnn_frontend.h (./dev build fetches it)")
  endif()
  mark_as_advanced(HEADROOM_NVCC HEADROOM_CUDNN_INCLUDE HEADROOM_CUDNN_FRONTEND_INCLUDE)
endmacro()

if(HEADROOM_CUDA STREQUAL "OFF")
  message(STATUS "Headroom backends: cpu (HEADROOM_CUDA=OFF)")
  return()
endif()

headroom_find_cuda_parts()
if(headroom_cuda_missing)
  list(JOIN headroom_cuda_missing ", " headroom_cuda_missing)
  if(HEADROOM_CUDA STREQUAL "ON")
    message(FATAL_ERROR "HEADROOM_CUDA=ON, but these were not found: ${headroom_cuda_missing}")
  endif()
  message(STATUS "Headroom backends: cpu (no CUDA: not found: ${headroom_cuda_missing})")
  return()
endif()

set(CMAKE_CUDA_COMPILER "${HEADROOM_NVCC}")
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90)
endif()
enable_language(CUDA)
# The CUDA module of CMake 3.25 knows no standard above 17, so the flag is given here, and the
# standard only after the compiler was probed.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
find_package(CUDAToolkit 13 REQUIRED)

add_library(headroom_cuda_libs INTERFACE)
target_include_directories(headroom_cuda_libs SYSTEM INTERFACE
                           "${HEADROOM_CUDNN_INCLUDE}" ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(headroom_cuda_libs INTERFACE
  "${HEADROOM_LIB_cudnn}" "${HEADROOM_LIB_cublas}" "${HEADROOM_LIB_cublasLt}" CUDA::cudart_static)
add_library(headroom_cudnn_frontend INTERFACE)
target_include_directories(headroom_cudnn_frontend SYSTEM INTERFACE
                           "${HEADROOM_CUDNN_FRONTEND_INCLUDE}")

set(HEADROOM_WITH_CUDA ON)
message(STATUS "Headroom backends: cpu, cuda (CUDA ${CUDAToolkit_VERSION}, "
               "sm_${CMAKE_CUDA_ARCHITECTURES}, cuDNN from ${HEADROOM_LIB_cudnn})")
