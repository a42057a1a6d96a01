#!/bin/sh
# What ccache starts where it has nothing: nvcc step by step, gcc on huge pages, g++ with headers
# that are ready as well, other compilers as they are.
case ${1##*/} in
  nvcc)
    [ -x "${TORCHSMITH_CUDA_PARTS_PYTHON-}" ] &&
      exec "$TORCHSMITH_CUDA_PARTS_PYTHON" -I -S "${0%/*}/nvcc_parts.py" "$@" ;;
  *clang*) ;;
  *++* | *cc*)
    if [ "${TORCHSMITH_ACCEL:-off}" != off ]; then
      if [ -n "${TORCHSMITH_PRELOAD-}" ]; then
        export LD_PRELOAD="$TORCHSMITH_PRELOAD${LD_PRELOAD:+ $LD_PRELOAD}"
      fi
      case ${1##*/} in *++*)
        [ -n "${TORCHSMITH_HEADERS-}" ] && [ -f torchsmith-batches/headers.json ] &&
          exec "$TORCHSMITH_PYTHON" -P -m torchsmith.toolchain.accel.with_headers "$@" ;;
      esac
    fi ;;
esac
exec "$@"
