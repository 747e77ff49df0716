#!/bin/sh
# at_part.sh PROGRAM TEST - runs TEST on two fifths of a GPU, which an MPS of its own gives it; 77 (skipped) without, and where
# products are refused: they may be wrong there, but not in silence.
command -v nvidia-cuda-mps-control > /dev/null || exit 77
"$1" info --device cuda > /dev/null 2>&1 || exit 77
CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d) || exit 77
CUDA_MPS_LOG_DIRECTORY=$CUDA_MPS_PIPE_DIRECTORY
CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40
FOVEA_TEST_DEVICE=cuda
export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY CUDA_MPS_ACTIVE_THREAD_PERCENTAGE FOVEA_TEST_DEVICE
nvidia-cuda-mps-control -d > /dev/null 2>&1 || exit 77
said=$("$2" 2>&1)
rc=$?
echo "$said"
case $said in *"that MPS leaves this process"*) rc=77 ;; esac
echo quit | nvidia-cuda-mps-control > /dev/null 2>&1
rm -rf "$CUDA_MPS_PIPE_DIRECTORY"
exit $rc
