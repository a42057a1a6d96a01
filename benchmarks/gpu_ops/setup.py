"""A small CUDA extension, built by benchmarks/gpu_extension.py to prove that such builds work."""

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

setup(
    name="gpu-ops",
    version="1.0",
    packages=["gpu_ops"],
    install_requires=["torch"],
    ext_modules=[CUDAExtension("gpu_ops._C", ["csrc/ops.cpp", "csrc/kernels.cu"])],
    cmdclass={"build_ext": BuildExtension},
)
