"""What conda calls a project that has another name on PyPI.

As conda-forge's own table has them, for what torch and its companions require:
https://github.com/conda-forge/cf-graph-countyfair/blob/master/mappings/pypi/name_mapping.yaml
"""

from __future__ import annotations

from collections.abc import Mapping

# By the name as PyPI normalises it.
CONDA_NAMES: Mapping[str, str] = {
    "build": "python-build",
    "faiss-cpu": "faiss",
    "graphviz": "python-graphviz",
    "kaleido": "python-kaleido",
    "matplotlib": "matplotlib-base",
    "ml-dtypes": "ml_dtypes",
    "msgpack": "msgpack-python",
    "opencv-python": "py-opencv",
    "opencv-python-headless": "py-opencv",
    "ruamel-yaml": "ruamel.yaml",
    "tables": "pytables",
    "torch": "pytorch",
    "typing-extensions": "typing_extensions",
    "pytorch-triton": "triton",
    # NVIDIA's libraries, which its wheels name by CUDA: nvidia-cublas-cu12.
    "nvidia-cublas": "libcublas",
    "nvidia-cuda-cupti": "cuda-cupti",
    "nvidia-cuda-nvrtc": "cuda-nvrtc",
    "nvidia-cuda-runtime": "cuda-cudart",
    "nvidia-cudnn": "cudnn",
    "nvidia-cufft": "libcufft",
    "nvidia-cufile": "libcufile",
    "nvidia-curand": "libcurand",
    "nvidia-cusolver": "libcusolver",
    "nvidia-cusparse": "libcusparse",
    "nvidia-cusparselt": "cusparselt",
    "nvidia-nccl": "nccl",
    "nvidia-nvjitlink": "libnvjitlink",
    "nvidia-nvshmem": "libnvshmem3",
    "nvidia-nvtx": "cuda-nvtx",
}
