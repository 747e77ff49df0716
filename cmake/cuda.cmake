# The CUDA backend: a shared object of its own, opened when a CUDA device is asked for, so that the library needs no
# CUDA at run time.  Without nvcc or the wish for it nothing is built and nothing else changes.  It takes minutes to
# compile, so it is no part of what a plain build makes: its target is "cuda", and `make cuda` and `make install` build it.
#
# Machine code for sm_90, and for everything else from sm_80 on an intermediate form that the driver compiles.
add_custom_target(cuda)

# What the library and the backend say to each other (src/backend/cuda_host.h): a backend that an older build left behind must
# not be taken for one of today.
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
    # cuDNN is used where its headers are found now and the library is found when fovea runs.
    find_path(CUDNN_INCLUDE_DIR cudnn_graph.h HINTS ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
    find_file(CUDNN_LIBRARY libcudnn.so.9 HINTS ${CUDNN_INCLUDE_DIR}/.. ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64)
    set(paths "${CUDAToolkit_LIBRARY_DIR}")
    if(CUDNN_INCLUDE_DIR AND CUDNN_LIBRARY)
      get_filename_component(cudnn_folder ${CUDNN_LIBRARY} DIRECTORY)
      list(APPEND paths ${cudnn_folder})
    endif()
    list(REMOVE_DUPLICATES paths)
    file(GLOB_RECURSE cuda CONFIGURE_DEPENDS src/backend/cuda/*.cu)
    # Hopper's own instructions are no part of sm_90 but of sm_90a, which has no intermediate form for other chips: these files
    # are compiled for it alone, and what they hold is asked for on such a device only.
    set(sm90 ${cuda})
    list(FILTER sm90 INCLUDE REGEX "_sm90")
    list(FILTER cuda EXCLUDE REGEX "_sm90")
    add_library(fovea_cuda_sm90 OBJECT EXCLUDE_FROM_ALL ${sm90})
    add_library(fovea_cuda MODULE EXCLUDE_FROM_ALL ${cuda} $<TARGET_OBJECTS:fovea_cuda_sm90>)
    add_dependencies(cuda fovea_cuda)
    # cuBLASLt is opened with the first product, cuDNN with the first attention it is for: only paths to them are linked.
    set_target_properties(fovea_cuda fovea_cuda_sm90 PROPERTIES CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
      CUDA_VISIBILITY_PRESET hidden CUDA_RUNTIME_LIBRARY Static BUILD_RPATH "${paths}" INSTALL_RPATH "${paths}")
    set_target_properties(fovea_cuda_sm90 PROPERTIES CUDA_ARCHITECTURES 90a-real)
    foreach(target fovea_cuda fovea_cuda_sm90)
      target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
      target_compile_options(${target} PRIVATE -Xcompiler=-Wall,-Wextra)
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
