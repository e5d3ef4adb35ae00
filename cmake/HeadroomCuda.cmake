# Decides whether the CUDA backend is built, says which and why, and makes its imported targets:
# headroom_cuda_libs (static runtime, cuBLAS, cuBLASLt, cuDNN) and headroom_cudnn_frontend.
# Sets HEADROOM_WITH_CUDA.
set(HEADROOM_WITH_CUDA OFF)
set(headroom_cuda_minimum 13.0)

# Sets OUT to the compute capabilities of this machine's GPUs that the kernels can be compiled for,
# as 86 for 8.6; empty without one. Before 80 there is no cp.async and no bf16 or TF32 product.
function(headroom_find_gpus out)
  set(found "")
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE listed ERROR_QUIET RESULT_VARIABLE status TIMEOUT 20)
  if(status EQUAL 0)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]+" listed "${listed}")
    foreach(capability IN LISTS listed)
      string(REPLACE "." "" capability "${capability}")
      if(capability GREATER_EQUAL 80)
        list(APPEND found "${capability}")
      endif()
    endforeach()
    list(REMOVE_DUPLICATES found)
  endif()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

if(HEADROOM_CUDA STREQUAL "OFF")
  message(STATUS "Headroom backends: cpu (HEADROOM_CUDA=OFF)")
  return()
endif()

set(headroom_deps "${PROJECT_SOURCE_DIR}/.deps")
set(headroom_cuda_missing "")

# nvcc: the one asked for, then the one on PATH, then the usual folders, then what ./dev fetched.
if(NOT CMAKE_CUDA_COMPILER AND DEFINED ENV{CUDACXX})
  set(CMAKE_CUDA_COMPILER "$ENV{CUDACXX}")
endif()
if(CMAKE_CUDA_COMPILER)
  find_program(HEADROOM_NVCC "${CMAKE_CUDA_COMPILER}")
endif()
set(headroom_cuda_hints "")
foreach(root "${CUDAToolkit_ROOT}" "$ENV{CUDAToolkit_ROOT}" "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}")
  if(root)
    list(APPEND headroom_cuda_hints "${root}")
  endif()
endforeach()
find_program(HEADROOM_NVCC nvcc HINTS ${headroom_cuda_hints}
             PATHS /usr/local/cuda "${headroom_deps}/cuda" PATH_SUFFIXES bin)
mark_as_advanced(HEADROOM_NVCC)

if(HEADROOM_NVCC)
  execute_process(COMMAND "${HEADROOM_NVCC}" --version
                  OUTPUT_VARIABLE headroom_nvcc_output ERROR_QUIET)
  string(REGEX MATCH "release ([0-9.]+)" headroom_nvcc_output "${headroom_nvcc_output}")
  if(CMAKE_MATCH_1 VERSION_LESS headroom_cuda_minimum)
    list(APPEND headroom_cuda_missing
         "CUDA ${headroom_cuda_minimum} (${HEADROOM_NVCC} is '${CMAKE_MATCH_1}')")
  endif()
  get_filename_component(headroom_cuda_root "${HEADROOM_NVCC}" REALPATH)
  get_filename_component(headroom_cuda_root "${headroom_cuda_root}/../.." ABSOLUTE)
  list(APPEND headroom_cuda_hints "${headroom_cuda_root}")
endif()
if(DEFINED ENV{CUDNN_HOME})
  list(APPEND headroom_cuda_hints "$ENV{CUDNN_HOME}")
endif()

# cuDNN may lie in the toolkit, with the system's own headers, or in what ./dev fetched.
find_path(HEADROOM_CUDNN_INCLUDE cudnn.h HINTS ${headroom_cuda_hints}
          PATHS "${headroom_deps}/cuda" PATH_SUFFIXES include)
find_path(HEADROOM_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h
          HINTS "${headroom_deps}/cudnn-frontend" ${headroom_cuda_hints} PATH_SUFFIXES include)
find_path(HEADROOM_CUDA_INCLUDE cuda_runtime_api.h HINTS ${headroom_cuda_hints}
          PATH_SUFFIXES include targets/x86_64-linux/include)
mark_as_advanced(HEADROOM_CUDNN_INCLUDE HEADROOM_CUDNN_FRONTEND_INCLUDE HEADROOM_CUDA_INCLUDE)
if(NOT HEADROOM_CUDA_INCLUDE)
  list(APPEND headroom_cuda_missing "cuda_runtime_api.h")
endif()
if(NOT HEADROOM_CUDNN_INCLUDE)
  list(APPEND headroom_cuda_missing "cudnn.h")
else()
  set(headroom_cudnn_major "")  # before cuDNN 8 there was no such header
  if(EXISTS "${HEADROOM_CUDNN_INCLUDE}/cudnn_version.h")
    file(STRINGS "${HEADROOM_CUDNN_INCLUDE}/cudnn_version.h" headroom_cudnn_major
         REGEX "^#define CUDNN_MAJOR +[0-9]+")
  endif()
  string(REGEX REPLACE "[^0-9]" "" headroom_cudnn_major "${headroom_cudnn_major}")
  if(NOT headroom_cudnn_major EQUAL 9)
    list(APPEND headroom_cuda_missing
         "cuDNN 9 (${HEADROOM_CUDNN_INCLUDE} has '${headroom_cudnn_major}')")
  endif()
endif()
if(NOT HEADROOM_CUDNN_FRONTEND_INCLUDE)
  list(APPEND headroom_cuda_missing "cudnn_frontend.h (./dev build fetches it)")
endif()
foreach(library cudnn cublasLt cublas cudart_static)
  find_library(HEADROOM_LIB_${library} NAMES ${library} HINTS ${headroom_cuda_hints}
               PATHS "${headroom_deps}/cuda"
               PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib targets/sbsa-linux/lib)
  mark_as_advanced(HEADROOM_LIB_${library})
  if(NOT HEADROOM_LIB_${library})
    list(APPEND headroom_cuda_missing "lib${library}")
  endif()
endforeach()

if(NOT HEADROOM_NVCC)
  set(headroom_cuda_missing "nvcc")  # the rest is looked for only once there is one
endif()
if(headroom_cuda_missing)
  list(JOIN headroom_cuda_missing ", " headroom_cuda_missing)
  if(HEADROOM_CUDA STREQUAL "ON")
    message(FATAL_ERROR "HEADROOM_CUDA=ON, but these were not found: ${headroom_cuda_missing}")
  endif()
  message(STATUS "Headroom backends: cpu (no CUDA: not found: ${headroom_cuda_missing})")
  return()
endif()

set(CMAKE_CUDA_COMPILER "${HEADROOM_NVCC}")
# The architecture: the one asked for, then those of the GPUs that are here, then 90.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  headroom_find_gpus(CMAKE_CUDA_ARCHITECTURES)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90)
  endif()
endif()
enable_language(CUDA)
# The CUDA module of CMake 3.25 knows no standard above 17, so the flag is given here, and the
# standard is set only after the compiler was probed.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)

# Not find_package(CUDAToolkit): as shipped with CMake 3.25 it fails on CUDA 13, which has no
# nvToolsExt library any more. nv/target, which cuda_fp16.h includes, lies in CCCL's folder.
# Imported, since the installed package makes one of its own (see headroom-config.cmake.in).
add_library(headroom_cuda_libs INTERFACE IMPORTED GLOBAL)
target_include_directories(headroom_cuda_libs INTERFACE
                           "${HEADROOM_CUDNN_INCLUDE}" "${HEADROOM_CUDA_INCLUDE}")
if(EXISTS "${HEADROOM_CUDA_INCLUDE}/cccl")
  target_include_directories(headroom_cuda_libs INTERFACE "${HEADROOM_CUDA_INCLUDE}/cccl")
endif()
target_link_libraries(headroom_cuda_libs INTERFACE
  "${HEADROOM_LIB_cudnn}" "${HEADROOM_LIB_cublas}" "${HEADROOM_LIB_cublasLt}"
  "${HEADROOM_LIB_cudart_static}" Threads::Threads ${CMAKE_DL_LIBS} rt)
add_library(headroom_cudnn_frontend INTERFACE)
target_include_directories(headroom_cudnn_frontend SYSTEM INTERFACE
                           "${HEADROOM_CUDNN_FRONTEND_INCLUDE}")

set(HEADROOM_WITH_CUDA ON)
message(STATUS "Headroom backends: cpu, cuda (CUDA ${CMAKE_CUDA_COMPILER_VERSION}, "
               "compute capability ${CMAKE_CUDA_ARCHITECTURES}, cuDNN from ${HEADROOM_LIB_cudnn})")
