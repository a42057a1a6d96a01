#!/bin/sh
# What ccache starts where it has nothing: nvcc step by step, g++ with headers that are ready, other
# compilers as they are.
case ${1##*/} in
  nvcc)
    [ -x "${TORCHSMITH_CUDA_PARTS_PYTHON-}" ] &&
      exec "$TORCHSMITH_CUDA_PARTS_PYTHON" -I -S "${0%/*}/nvcc_parts.py" "$@" ;;
  *++*)
    [ "${TORCHSMITH_ACCEL:-off}" != off ] && [ -n "${TORCHSMITH_HEADERS-}" ] &&
      [ -f torchsmith-batches/headers.json ] &&
      exec "$TORCHSMITH_PYTHON" -P -m torchsmith.toolchain.accel.with_headers "$@" ;;
esac
exec "$@"
