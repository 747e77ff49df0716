# The CUDA backend, libfovea_cuda.so: opened with dlopen when a CUDA device is requested, so libfovea itself does not depend on
# CUDA.  Skipped where nvcc is missing or FOVEA_CUDA is OFF.  It takes minutes to compile and is no part of the default build:
# its target is "cuda", built by `make cuda` and `make install`.
#
# SASS for sm_90; PTX of sm_80 for every other GPU, compiled by the driver.
add_custom_target(cuda)

# FV_CUDA_ABI: a hash of the headers both sides share (src/backend/cuda_host.h), so that a stale libfovea_cuda.so is refused.
set(abi "")
foreach(header author/backend author/kernel_args author/kernels device env error ops tensor ../../src/backend/cuda_host)
  set(path ${PROJECT_SOURCE_DIR}/include/fovea/${header}.h)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  file(MD5 ${path} sum)
  string(APPEND abi ${sum})
endforeach()
string(MD5 abi ${abi})
string(SUBSTRING ${abi} 0 16 abi)
set_source_files_properties(src/backend/cuda_open.c src/backend/cuda/device/cuda.cu PROPERTIES COMPILE_DEFINITIONS FV_CUDA_ABI=0x${abi}u)

# Writes gen/cuda_files.h with X(name) for every file that ends with FOR_ALL_DTYPES(fv_cuda_<name>), that is, registers kernels:
# adding one edits no list.
function(list_cuda_kernels)
  set(text "")
  foreach(path ${ARGN})
    file(STRINGS ${path} lines REGEX "^FOR_ALL_DTYPES\\(fv_cuda_[a-z0-9_]+\\)")
    foreach(line ${lines})
      string(REGEX REPLACE "^FOR_ALL_DTYPES\\(fv_cuda_([a-z0-9_]+)\\).*" "X(\\1)\n" entry "${line}")
      string(APPEND text "${entry}")
    endforeach()
  endforeach()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ARGN})
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/gen/cuda_files.h CONTENT "${text}" @ONLY)
endfunction()

if(FOVEA_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80-virtual 90-real)
    endif()
    if(NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER)
      set(CMAKE_CUDA_COMPILER_LAUNCHER "${CMAKE_C_COMPILER_LAUNCHER}")
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    # cuDNN: headers now, the library at run time; both are optional.
    find_path(CUDNN_INCLUDE_DIR cudnn_graph.h HINTS ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
    find_file(CUDNN_LIBRARY libcudnn.so.9 HINTS ${CUDNN_INCLUDE_DIR}/.. ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64)
    set(paths "${CUDAToolkit_LIBRARY_DIR}")
    if(CUDNN_INCLUDE_DIR AND CUDNN_LIBRARY)
      get_filename_component(cudnn_folder ${CUDNN_LIBRARY} DIRECTORY)
      list(APPEND paths ${cudnn_folder})
    endif()
    list(REMOVE_DUPLICATES paths)
    file(GLOB_RECURSE cuda CONFIGURE_DEPENDS src/backend/cuda/*.cu)
    list_cuda_kernels(${cuda})
    # wgmma and setmaxnreg need sm_90a, whose code runs on sm_90 alone: *_sm90*.cu are compiled for it only, and dispatch calls
    # them on such a device only.
    set(sm90 ${cuda})
    list(FILTER sm90 INCLUDE REGEX "_sm90")
    list(FILTER cuda EXCLUDE REGEX "_sm90")
    add_library(fovea_cuda_sm90 OBJECT EXCLUDE_FROM_ALL ${sm90})
    add_library(fovea_cuda MODULE EXCLUDE_FROM_ALL ${cuda} $<TARGET_OBJECTS:fovea_cuda_sm90>)
    add_dependencies(cuda fovea_cuda)
    # cuBLASLt and cuDNN are opened with dlopen at their first use; the rpath says where.
    set_target_properties(fovea_cuda fovea_cuda_sm90 PROPERTIES CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
      CUDA_VISIBILITY_PRESET hidden CUDA_RUNTIME_LIBRARY Static BUILD_RPATH "${paths}" INSTALL_RPATH "${paths}")
    set_target_properties(fovea_cuda_sm90 PROPERTIES CUDA_ARCHITECTURES 90a-real)
    foreach(target fovea_cuda fovea_cuda_sm90)
      target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src
        ${PROJECT_BINARY_DIR}/gen)
      target_compile_options(${target} PRIVATE --extended-lambda -Xcompiler=-Wall,-Wextra)
    endforeach()
    if(CUDNN_INCLUDE_DIR)
      target_include_directories(fovea_cuda SYSTEM PRIVATE ${CUDNN_INCLUDE_DIR})
    endif()
    target_link_libraries(fovea_cuda PRIVATE ${CMAKE_DL_LIBS})
    install(TARGETS fovea_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/fovea OPTIONAL)
  else()
    message(STATUS "nvcc was not found: building without the CUDA backend")
  endif()
endif()
