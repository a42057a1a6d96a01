"""What torch says of itself: version, build, features."""

import importlib
from typing import Any


def ask(*questions: Any) -> Any:
    """Return the first answer; every generation of torch has its own way to ask."""
    for question in questions:
        try:
            return question()
        except Exception:
            continue
    return None


def features(torch: Any) -> "dict[str, Any]":
    """Return which features are there: True, False, or None where it cannot be asked."""
    c = torch._C
    backends = importlib.import_module("torch.backends")

    def backend(name: str) -> Any:
        module = importlib.import_module("torch.backends." + name)
        return bool(module.is_available())

    def engines() -> Any:
        return torch.backends.quantized.supported_engines

    def collective(name: str) -> Any:
        distributed = importlib.import_module("torch.distributed")
        if not distributed.is_available():
            return False
        return bool(getattr(distributed, "is_%s_available" % name)())

    def gloo() -> Any:
        # Before 1.13 there is no question to ask, and only the class tells.
        importlib.import_module("torch.distributed")
        return hasattr(importlib.import_module("torch._C._distributed_c10d"), "ProcessGroupGloo")

    def tensorpipe() -> Any:
        rpc = importlib.import_module("torch.distributed.rpc")
        if not rpc.is_available():
            return False
        return hasattr(rpc, "TensorPipeRpcBackendOptions")

    def quantized(name: str) -> Any:
        return name in engines()

    def numpy() -> Any:
        importlib.import_module("numpy")
        return ask(lambda: int(torch.ones(2).numpy().sum()) == 2) or False

    def importable(name: str) -> Any:
        try:
            importlib.import_module(name)
        except ImportError:
            return False
        return True

    cuda = getattr(torch.version, "cuda", None) is not None
    return {
        "cuda": cuda,
        "rocm": getattr(torch.version, "hip", None) is not None,
        "cudnn": ask(lambda: hasattr(c, "_cudnn"), lambda: bool(c.has_cudnn)),
        # Before 2.1 torch.cuda.has_magma is False until a GPU was used; the text always tells.
        "magma": ask(lambda: bool(c._has_magma), lambda: "Magma " in c._show_config()),
        "lapack": ask(lambda: bool(c.has_lapack), lambda: bool(c._has_lapack)),
        "mkl": ask(lambda: backend("mkl"), lambda: bool(c.has_mkl)),
        "mkldnn": ask(lambda: backend("mkldnn"), lambda: bool(c.has_mkldnn)),
        "openmp": ask(lambda: backend("openmp"), lambda: bool(c.has_openmp)),
        "nnpack": ask(lambda: bool(torch._nnpack_available())),
        "xnnpack": ask(
            lambda: bool(c._is_xnnpack_enabled()), lambda: bool(backends.xnnpack.enabled)
        ),
        "fbgemm": ask(lambda: quantized("fbgemm")),
        "pytorch_qnnpack": ask(lambda: quantized("qnnpack")),
        "distributed": ask(
            lambda: bool(importlib.import_module("torch.distributed").is_available())
        ),
        "nccl": ask(lambda: collective("nccl")),
        "gloo": ask(lambda: collective("gloo"), gloo),
        "mpi": ask(lambda: collective("mpi")),
        "ucc": ask(lambda: collective("ucc")),
        "tensorpipe": ask(tensorpipe),
        "numpy": ask(numpy),
        "kineto": ask(
            lambda: bool(importlib.import_module("torch.autograd").kineto_available()),
            lambda: bool(c._autograd.kineto_available()),
        ),
        "itt": ask(lambda: bool(torch.profiler.itt.is_available()), lambda: hasattr(c, "_itt")),
        "flash_attention": ask(lambda: bool(backends.cuda.is_flash_attention_available()))
        if cuda
        else False,
        "cusparselt": ask(lambda: c._cusparselt.getVersionInt() > 0) if cuda else False,
        "xpu": ask(lambda: bool(torch.xpu._is_compiled())),
        "vulkan": ask(lambda: bool(torch.is_vulkan_available())),
        "functorch": ask(lambda: importable("functorch")),
        "caffe2": ask(lambda: importable("caffe2.python")),
    }


def archs(torch: Any) -> Any:
    """Return the architectures compiled for; get_arch_list() gives none where no GPU is."""
    flags = ask(lambda: torch._C._cuda_getArchFlags())
    return flags.split() if isinstance(flags, str) else None


def facts() -> "dict[str, Any]":
    """Everything that can be asked without computing anything."""
    torch = importlib.import_module("torch")
    config = ask(
        lambda: torch.__config__.show(),
        lambda: torch._C._show_config(),
    )
    answer = {
        "version": torch.__version__ + "",
        "file": torch.__file__,
        "extension": ask(lambda: torch._C.__file__),
        "git_version": ask(lambda: torch.version.git_version),
        "debug": bool(ask(lambda: torch.version.debug)),
        "cuda": ask(lambda: torch.version.cuda),
        "hip": ask(lambda: torch.version.hip),
        "cudnn": ask(lambda: torch.backends.cudnn.version()),
        "nccl": ask(lambda: list(torch.cuda.nccl.version())),
        "cxx11_abi": ask(
            lambda: bool(torch._C._GLIBCXX_USE_CXX11_ABI), lambda: torch.compiled_with_cxx11_abi()
        ),
        "config": config or "",
        "parallel": ask(lambda: torch.__config__.parallel_info()) or "",
        "threads": ask(lambda: torch.get_num_threads()),
        "archs": archs(torch),
        "features": features(torch),
    }
    return {"status": "info", "found": "", "detail": "", "facts": answer}
