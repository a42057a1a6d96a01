"""Logs as people have them: in any encoding and language, with warnings, retries and good ends."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import time

import pytest

from torchsmith.diagnose.diagnose import Diagnosis, diagnose, explained
from torchsmith.diagnose.scan import scan_file

pytestmark = pytest.mark.unit

KILLED = "c++: fatal error: Killed signal terminated program cc1plus"


def ids(found: Diagnosis) -> list[str]:
    return [named.id for named in found.named if not named.after]


def of_bytes(data: bytes) -> Diagnosis:
    return explained(scan_file(io.BytesIO(data)))


# ------------------------------------------------------------- cause before consequence


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            "NCCL WARN Call to posix_fallocate failed : No space left on device\n"
            "NCCL WARN Error while creating shared memory segment nccl-shm-recv-0-1 (size 96)",
            "nccl-shared-memory",
        ),
        (
            "nvidia-container-cli: mount error: file creation failed: /x/merged/usr/lib/"
            "x86_64-linux-gnu/libnvidia-ml.so.1: file exists: unknown.",
            "container-has-driver-library",
        ),
        (
            "nvidia-container-cli: device error: 1: unknown device: unknown.",
            "container-gpu-unknown",
        ),
        (
            "sbatch: error: Batch job submission failed: Invalid generic resource (gres) "
            "specification\nsbatch: fatal: --gpus-per-task or --tres-per-task used without either "
            "--gpus or -n/--ntasks is not allowed.",
            "slurm-gpus-per-task",
        ),
        (
            "srun: fatal: SLURM_TRES_PER_TASK is mutually exclusive with --ntasks-per-gpu",
            "slurm-inherited-options",
        ),
        (
            "ERROR: pip's dependency resolver does not currently take into account all the "
            "packages that are installed. This behaviour is the source of the following "
            "dependency conflicts.\nValueError: numpy.dtype size changed, may indicate binary "
            "incompatibility. Expected 96 from C header, got 88 from PyObject",
            "numpy-binary-differs",
        ),
        (
            "from tools.nnwrap import generate_wrappers as generate_nn_wrappers\n"
            "ModuleNotFoundError: No module named 'tools.nnwrap'",
            "pip-torch-placeholder",
        ),
        ("foo.c:3:10: fatal error: ffi.h: No such file or directory", "libffi-headers-missing"),
        (
            "RuntimeError: CUDA error: too many resources requested for lanch",
            "too-many-resources",
        ),
        (
            "RuntimeError: Detected that PyTorch and TorchAudio were compiled with different CUDA "
            "versions. PyTorch has CUDA version 11.7 whereas TorchAudio has CUDA version 11.8.",
            "companion-of-another-cuda",
        ),
        (
            "math.h(79): error: exception specification is incompatible with that of previous "
            'function "cospi" (declared at line 2601 of crt/math_functions.h)',
            "glibc-too-new-for-cuda",
        ),
        (
            "aten/src/ATen/core/IListRef_inl.h:171:17: error: possibly dangling reference to a "
            "temporary [-Werror=dangling-reference]",
            "dangling-reference",
        ),
        (
            "nvlink error   : entry function '_Z28ncclAllReduceRingLLKernel_sum_i88ncclColl' with "
            "max regcount of 80 calls function '_Z25ncclReduceScatter_max_u64P14CollectiveArgs' "
            "with regcount of 96",
            "nvlink-register-count",
        ),
    ],
)
def test_what_was_named_wrongly_is_named_right(log: str, cause: str) -> None:
    assert ids(diagnose(log.splitlines()))[0] == cause


MESSAGES = """\
Unknown CUDA arch (12.0) or GPU not supported|arch-unknown-to-torch
    arch_list[-1] += '+PTX'|no-gpu-to-build-for
_pickle.UnpicklingError: Weights only load failed.|weights-only-load
xFormers can't load C++/CUDA extensions. xFormers was built for:|xformers-for-another-torch
a.h:1:10: fatal error: THC/THC.h: No such file or directory|thc-removed
error: 'AT_CHECK' was not declared in this scope|torch-cpp-api-removed
fatal error: thrust/complex.h: No such file or directory|cccl-headers-moved
    CUDA::nvToolsExt|nvtoolsext-removed
ValueError: numpy.dtype size changed, may indicate binary incompatibility.|numpy-binary-differs
TypeError: Descriptors cannot be created directly.|protobuf-python-too-new
ImportError: cannot import name 'packaging' from 'pkg_resources'|pkg-resources-without-packaging
RuntimeError: Not compiled with CUDA support|extension-without-cuda
ModuleNotFoundError: No module named 'mmcv._ext'|mmcv-without-operators
RuntimeError: DataLoader worker (pid(s) 12, 13) exited unexpectedly|dataloader-worker-exited
RuntimeError: Cannot re-initialize CUDA in forked subprocess.|cuda-in-forked-process
ERROR: failed (exitcode: -9) local_rank: 0 (pid: 1) of binary: python|torchrun-worker-killed
NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.|nvidia-smi-failed
Failed to initialize NVML: Unknown Error|nvml-unknown-error
Error 802: system not yet initialized|error-802
RuntimeError: Failed to find C compiler. Please specify via CC|triton-without-compiler
ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'|ptxas-too-old
ImportError: libx.so: cannot enable executable stack as shared object requires|executable-stack
std_function.h:435:145: error: parameter packs not expanded with '...':|nvcc-and-gcc-11
ncclInvalidUsage: This usually reflects invalid usage of NCCL library.|nccl-invalid-usage
RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling|cublas-execution-failed
RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED|cudnn-execution-failed
Collecting torch==0.1.2|pip-torch-placeholder
Exception: You tried to install "pytorch". The package named for PyTorch|pip-pytorch-name
PackagesNotFoundError: The following packages are not available|conda-package-not-found
  - nothing provides requested cudatoolkit 11.8**|conda-package-not-found
ImportError: libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent|mkl-too-new
ImportError: x.so: undefined symbol: aoti_torch_abi_version|extension-newer-than-torch
'ninja' is not recognized as an internal or external command,|program-missing
'nvcc' is not recognized as an internal or external command,|nvcc-not-found
nvcc : The term 'nvcc' is not recognized as the name of a cmdlet, function,|nvcc-not-found
zsh: command not found: pip|program-missing
error: unrecognized command line option '-Wno-foo'|compiler-option-unknown
cc1plus: error: unrecognized command-line option '-std=c++20'|compiler-too-old
x.lib(a.obj) : error LNK2005: "void run()" already defined in b.obj|multiple-definition
duplicate symbol __ZN2at6native13pixel_shuffleERKNS_6TensorEx in:|multiple-definition
ld.lld: error: duplicate symbol: foo|multiple-definition
Undefined symbols for architecture x86_64:|undefined-reference
  Could not find a configuration file for package "OpenCV" that is compatible|cmake-package-missing
c++: error: torch: No such file or directory|build-input-missing
ImportError: type "Net" referenced unknown base type "torch::nn::Module"|torch-not-imported-first
Error: Could not find some dependencies for pytorch: cudatoolkit >=9.0,<9.1|conda-years-old
mv: cannot stat 'dist/torch-*.whl': No such file or directory|file-missing
AssertionError: Default process group is not initialized|process-group-missing
BlockingIOError: [Errno 11] Resource temporarily unavailable|threads-not-permitted
RuntimeError: Found dtype Double but expected Float|tensors-of-two-types
ImportError: Using a `device_map` requires Accelerate|python-package-wanted
ProcessGroupNCCL.cpp:260, unhandled cuda error|nccl-failed
NCCL error in: NCCLUtils.hpp:82, invalid argument, NCCL version 2.4.8|nccl-invalid-usage
ImportError: undefined symbol: _ZNK2at6Tensor6deviceEv|extension-for-another-torch
fatal: reference is not a tree: v1.2.3|git-reference-missing
E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 12|apt-locked
KeyError: 'SLURM_PROCID'|slurm-variables-missing
TypeError: 'NoneType' object is not subscriptable|value-is-none
json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)|data-not-read
RuntimeError: stack expects each tensor to be equal size, but got [3, 4] at entry 0|tensor-sizes
error: no matching function for call to 'run(int)'|source-types-differ
Loss is nan, stopping training|loss-not-a-number
python: can't open file '/lab/demo.py': [Errno 2] No such file or directory|file-missing
ERROR: No supported gcc/g++ host compiler found.|nvcc-host-unusable
No local packages or working download links found for spconv|easy-install-finds-nothing
ImportError: Please build Cython components with: `pip install --editable .`|compiled-part-missing
OSError: Could not load this library: /x/torchaudio/lib/libtorchaudio.so|companion-not-loaded
(RayTrainWorker pid=7315) *** SIGABRT received at time=1734086759 ***|aborted
InductorError                             Traceback (most recent call last)|torch-compile-failed
x at 0x07fae240a1c80: NVRTC_ERROR_INVALID_OPTION|nvrtc-option-refused
ptxas x, line 1; error : Instruction 'a.b' not supported on .target 'sm_120'|kernel-wants-newer-gpu
ptxas error   : Value of threads per SM for entry _ZN4matx is out of range. x|kernel-launch-bounds
error: Don't know how to compile kernel.cu to build\\kernel.obj|cuda-source-for-setuptools
Library load error 1114: A dynamic link library (DLL) initialization routine|windows-library-missing
AssertionError: Invalid CUDA '--device 0' requested, use '--device cpu'|no-gpu-found
RuntimeError: Expected all tensors to be on the same device, but foun|tensors-on-two-devices
error: unexpected argument '--no-sources-package' found|option-unknown
RuntimeError: initialization failed: name 'run' is not defined.|python-name-undefined
error: option --user not recognized|option-unknown
E: Release file for http://x/InRelease is not valid yet (invalid for another 5h)|clock-wrong
sbatch: error: AssocGrpGRES|slurm-account
AssertionError: /usr/lib/python3.8/distutils/core.py|debian-setuptools-mixed
RuntimeError: makeDeviceForHostname(): unsupported gloo device|gloo-interface
[ERROR] [launch.py:321] ['python3', 'a.py'] exits with return code = -7|bus-error
[ERROR] [launch.py:321] ['python3', 'a.py'] exits with return code = -11|segmentation-fault
ERROR: a 1 has requirement b==2, but you'll have b 1 which is incompatible|pip-left-conflicts
error: command 'C:/A B/CUDA\\v10.1\\bin\\nvcc' failed: No such file or directory|nvcc-not-found
TypeError: can't pickle _thread.lock objects|not-picklable
GCC-9.3 or newer is required to compile PyTorch, but found 9.2.1|compiler-too-old
RuntimeError: Library cublas64_11.dll is not found or cannot be loaded|cuda-library-missing
The detected CUDA version (%s) mismatches the version that was used to compile|cuda-versions-differ
Please reinstall xformers (see https://github.com/facebookresearch/xformers)|xformers-for-another-torch
ImportError: DLL load failed: Операционная система не может запустить %1.|windows-library-clash
ImportError: DLL load failed: %1 is not a valid Win32 application.|windows-library-not-runnable
KeyError: 'CMAKE_BUILD_TYPE'|cmake-cache-incomplete
NCCL WARN Bootstrap Root : rank 1 of 8 ranks has already checked in|nccl-rank-twice
"""


@pytest.mark.parametrize("row", MESSAGES.splitlines())
def test_common_messages_are_known(row: str) -> None:
    line, cause = row.rsplit("|", 1)
    assert ids(diagnose([line]))[:1] == [cause]


def test_a_library_of_torch_itself_is_no_extension_for_another_torch() -> None:
    found = diagnose(
        [
            "ImportError: /x/site-packages/torch/lib/libtorch_python.so: undefined symbol: "
            "_ZN5torch8autograd9VariableTypeE"
        ]
    )
    assert "extension-for-another-torch" not in ids(found)


def test_what_is_fatal_comes_before_warnings_above_it() -> None:
    found = diagnose(
        [
            "UserWarning: CUDA initialization: Found no NVIDIA driver on your system.",
            "WARNING: something else",
            KILLED,
        ]
    )
    assert ids(found)[0] == "compiler-killed"


def test_two_names_for_one_line_are_one_failure() -> None:
    found = diagnose(["ImportError: libtorch_cuda.so: cannot open shared object file: No such"])
    assert ids(found) == ["torch-library-missing"]
    assert [item.after for item in found.named[1:]] == ["torch-library-missing"]


def test_equals_are_named_in_the_same_order_every_time() -> None:
    log = ["sbatch: error: Batch job submission failed: Invalid account or account/partition "]
    assert len({tuple(ids(diagnose(log))) for _ in range(5)}) == 1


# ------------------------------------------------------------------ what does not count

CMAKE = """\
-- The CXX compiler identification is GNU 12.2.0
-- Could NOT find CUDA (missing: CUDA_TOOLKIT_ROOT_DIR CUDA_NVCC_EXECUTABLE)
-- Could NOT find Python3 (missing: Python3_INCLUDE_DIRS Development)
src.cxx:1:10: fatal error: glog/stl_logging.h: No such file or directory
CMake Warning at cmake/Dependencies.cmake:95 (message):
  Not compiling with XPU.
-- Configuring done (24.5s)
-- Build files have been written to: /work/build
"""
RETRIED = """\
error: RPC failed; curl 92 HTTP/2 stream 0 was not closed cleanly: CANCEL (err 8)
fatal: clone of 'https://github.com/pybind/pybind11.git' into submodule path 'x' failed
Failed to clone 'third_party/pybind11'. Retry scheduled
Cloning into '/x/third_party/pybind11'...
Submodule path 'third_party/pybind11': checked out 'a2e59f0e7065404b44dfe92a28aca47ba1378dc4'
"""
PLATFORM = """\
WARNING: The requested image's platform (linux/amd64) does not match the detected host platform \
(linux/arm64/v8) and no specific platform was requested
Successfully built 0ec2f71b358c
Successfully tagged lab:latest
"""
NCCL = """\
qgpu2008:1:1 [0] NCCL INFO NET/Plugin : Plugin load (libnccl-net.so) returned 2 : \
libnccl-net.so: cannot open shared object file: No such file or directory
qgpu2008:1:1 [0] NCCL INFO Using network Socket
epoch 3 done
"""


STEP = """\
srun: Job 4711 step creation temporarily disabled, retrying (Requested nodes are busy)
srun: Step created for job 4711
"""
QUEUE = """\
  4711       gpu train.sh  user  R       1:00      1 node3
  4712       gpu train.sh  user PD       0:00      1 (Priority)
"""
LINKED = """\
/usr/bin/ld: skipping incompatible /usr/lib/libcuda.so when searching for -lcuda
[100%] Linking CXX shared library libx.so
"""


TENSORFLOW = """\
AttributeError: 'Namespace' object has no attribute 'noplots'
2022-07-15 16:05:06.78: W tensorflow/stream_executor/platform/default/dso_loader.cc:59] Could not \
load dynamic library 'libcudart.so.10.1'; dlerror: libcudart.so.10.1: cannot open shared object file
2022-07-15 16:05:06.78: I tensorflow/stream_executor/cuda/cudart_stub.cc:29] Ignore above cudart
"""


def test_what_tensorflow_says_when_it_is_imported_is_no_failure_of_torch() -> None:
    assert ids(diagnose(TENSORFLOW.splitlines())) == ["attribute-missing"]


NOT_FETCHED_BUT_BUILT = """\
error: Failed to prepare distributions
  Caused by: Failed to fetch wheel: flash-attn==2.6.3
  Caused by: Build backend failed to build wheel through `build_wheel()` with exit status: 1
"""


def test_a_wheel_whose_build_failed_is_no_download_that_failed() -> None:
    assert ids(diagnose(NOT_FETCHED_BUT_BUILT.splitlines())) == []


WARNED = """\
CMake Warning at cmake/Dependencies.cmake:141 (message):
MKL could not be found.  Defaulting to Eigen
[W NNPACK.cpp:80] Could not initialize NNPACK! Reason: Unsupported hardware.
/bin/sh: 1: lsmod: not found
E0000 00:00:1736163964.084812 cuda_dnn.cc:8310] Unable to register cuDNN factory: Attempting to \
register factory for plugin cuDNN when one has already been registered
UserWarning: Grad strides do not match bucket view strides. This is not an error, but may impair \
performance.
"""

CONTINUED = """\
CMake Warning at share/cmake/Caffe2/public/cuda.cmake:184 (message):
  Failed to compute shorthash for libnvrtc.so
Call Stack (most recent call first):
  CMakeLists.txt:28 (find_package)
[W socket.cpp:401] [c10d] The server socket cannot be initialized on [::]:7010 (errno: 97 - \
Address family not supported by protocol).
  rdzv_configs     : {'rank': 1, 'timeout': 900}
#       size         count    type   redop     time   algbw   busbw  error
[rank2]:W1115 torch/_inductor/select_algorithm.py:1469] [16/384] out of resource: shared memory, \
Required: 122880, Hardware limit: 101376. Reducing block sizes or num_stages may help.
"""
WITHOUT_HISTORY = """\
INFO cmd "python setup.py build " exited with exit code 0 and output:
fatal: Not a git repository (or any parent up to mount point /dev/shm)
-- USE_CUDNN is set to 0. Compiling without cuDNN support
"""
QUIET = [CMAKE, RETRIED, PLATFORM, NCCL, STEP, QUEUE, LINKED, WARNED, CONTINUED, WITHOUT_HISTORY]


@pytest.mark.parametrize("log", QUIET)
def test_what_was_only_tried_or_came_right_is_no_failure(log: str) -> None:
    found = diagnose(log.splitlines())
    assert ids(found) == []
    assert found.ended in {"well", "quiet"}


IMAGES = (
    "torchvision/io/image.py:13: UserWarning: Failed to load image Python extension: '[WinError "
    "127] The specified procedure could not be found'If you don't plan on using image functionality"
)
CONFLICT = (
    "ERROR: pip's dependency resolver does not currently take into account all the packages that "
    "are installed. This behaviour is the source of the following dependency conflicts.\n"
)
ELSEWHERE = CONFLICT + "grpcio-tools 1.64.0 requires protobuf<6.0dev, but you have protobuf 4.25.6"
CHECKED = """\
ERROR: Error checking for conflicts.
Traceback (most recent call last):
  File "/x/pkg_resources/__init__.py", line 2856, in __getattr__
    raise AttributeError(attr)
AttributeError: _DistInfoDistribution__dep_map
"""
NO_TRITON = """\
A matching Triton is not available, some optimizations will not be enabled.
Error caught was: No module named 'triton'
"""


@pytest.mark.parametrize(
    ("log", "note"),
    [
        (IMAGES, "torchvision-without-image-files"),
        (ELSEWHERE, "pip-conflict-elsewhere"),
        (CHECKED, "pip-check-failed"),
        (NO_TRITON, "xformers-without-triton"),
    ],
)
def test_a_warning_that_may_be_ignored_is_told_and_is_no_failure(log: str, note: str) -> None:
    found = diagnose(log.splitlines())
    assert ([named.id for named in found.named], found.ended) == ([note], "quiet")
    for line in ("nobody knows: cannot go on", "ValueError: nobody knows this"):
        assert diagnose([*log.splitlines(), line]).ended == "badly"
    found = diagnose([*log.splitlines(), KILLED])
    assert (ids(found)[0], found.ended) == ("compiler-killed", "badly")


def test_a_conflict_that_touches_torch_is_no_mere_note() -> None:
    for line in (
        "torchaudio 2.0.2 requires torch==2.0.1, but you have torch 2.0.0 which is incompatible.",
        "lab 1.0 requires numpy<2, but you have numpy 2.1.0 which is incompatible.",
    ):
        found = diagnose((ELSEWHERE + "\n" + line).splitlines())
        assert (ids(found), found.ended) == (["pip-left-conflicts"], "badly")


def test_a_log_that_ends_well_says_which_line_says_so() -> None:
    found = diagnose(CMAKE.splitlines())
    assert found.ended == "well"
    assert found.well is not None
    assert found.well.number == 8
    assert found.as_json()["ended"] == "well"


@pytest.mark.parametrize(
    "line",
    [
        "/usr/local/cuda/lib64/libx.so.7/y: Not a directory",
        "(.text+0x7): relocation truncated to fit: R_NEW_KIND against symbol `x'",
        "CMake Warning at a.cmake:1 (message):\n  A word.\n\n  Failed to link",
    ],
)
def test_a_failure_that_is_not_known_is_not_called_quiet(line: str) -> None:
    assert diagnose(line.splitlines()).ended == "badly"


def test_a_good_end_before_the_failure_is_none() -> None:
    found = diagnose([*PLATFORM.splitlines(), "$ docker run lab", KILLED])
    assert found.ended == "badly"
    assert ids(found) == ["compiler-killed"]


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            "The repository located at mirror.lab is not a trusted or secure host and is being "
            "ignored.\nERROR: No matching distribution found for torch",
            "pip-index-not-trusted",
        ),
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'ProxyError('Your proxy "
            "appears to only use HTTP and not HTTPS')': /simple/torch/\n"
            "ERROR: No matching distribution found for torch",
            "proxy-address-scheme",
        ),
        (
            "LibMambaUnsatisfiableError: Encountered problems while solving:\n"
            "  - nothing provides cudatoolkit >=11.1,<11.2 needed by pytorch-1.10.0",
            "conda-unsatisfiable",
        ),
        (
            "cmake --build . --target install\nmake: *** No rule to make target 'install'.  Stop.",
            "build-file-missing",
        ),
        (
            "fatal: early EOF\nfatal: clone of 'https://lab/x' into submodule path 'x' failed",
            "clone-broken-off",
        ),
        ("cp: cannot create file: disk quota exceeded", "disk-full"),
        ("Process completed with exit code 137.", "process-killed"),
        ('CUDA_ARCHITECTURES is set to "native", but no GPU was detected.', "no-gpu-to-build-for"),
        ("Fatal Python error: Bus error", "bus-error"),
        (
            "Could not find cudnn_LIBRARY using the following names: cudnn",
            "cmake-variable-not-found",
        ),
        ("Reason: QOSMinCpuNotSatisfied", "slurm-account"),
        ("NameError: name 'autogptq_cuda_64' is not defined", "extension-without-cuda"),
        (
            "NVRM: No NVIDIA graphics adapter probed!\n"
            "NVRM: was loaded and obtained ownership of the NVIDIA device(s).",
            "gpu-taken-by-another-driver",
        ),
        (
            "Initialization failed. warmup error: Traceback (most recent call last):\n"
            "AssertionError: res=<Response [502]>, res.text=''\nKilled",
            "server-behind-proxy",
        ),
        (
            "TRTInternal Error: Could not find any implementation for node conv1\n"
            "Segmentation fault",
            "tensorrt-no-implementation",
        ),
        (
            "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). "
            "Error 2: out of memory",
            "cuda-start-out-of-memory",
        ),
        (
            "[1.0] Out of memory: Killed process 19463 (cc1plus) total-vm:1kB\nKilled",
            "ended-for-want-of-memory",
        ),
        (
            "nvidia-container-cli: initialization error: driver error: failed to process request",
            "container-driver-not-loaded",
        ),
    ],
)
def test_the_cause_is_named_and_not_what_follows_from_it(log: str, cause: str) -> None:
    assert ids(diagnose(log.splitlines())) == [cause]


@pytest.mark.parametrize(
    ("log", "name"),
    [
        # torch's own names are not those of another release, nor is a build for the CPU one.
        ("AttributeError: module 'torch' has no attribute '__version__'", "torch-shadowed"),
        ("AttributeError: module 'torch' has no attribute 'float8_e4m3fn'", "torch-without-name"),
        (
            "ImportError: cannot import name 'Tensor' from 'torch' (unknown location)",
            "torch-shadowed",
        ),
        (
            "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'",
            "torch-without-cuda",
        ),
        ("libtorch_python.so: undefined symbol: PySlice_Unpack", "python-lacks-function"),
        # A download is no clone, a package no release.
        ("curl: (22) The requested URL returned error: 404", "download-not-there"),
        (
            "fatal: unable to access 'https://lab/x.git/': The requested URL returned error: 403",
            "clone-failed",
        ),
        ("E: Failed to fetch http://lab/pool/x_1.2_amd64.deb  404  Not Found", "apt-lists-old"),
        (
            "E: Failed to fetch http://lab/dists/old/Packages  404  Not Found",
            "apt-suite-gone",
        ),
        # nvcc is no C compiler.
        ("error: command '/usr/local/cuda/bin/nvcc' failed: No such file", "nvcc-not-found"),
        (
            "error: command '/bin/aarch64-linux-gnu-gcc' failed: No such file",
            "c-compiler-missing",
        ),
        # Another type is not another device.
        (
            "Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be "
            "the same",
            "tensors-of-two-types",
        ),
        (
            "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be "
            "the same",
            "tensors-on-two-devices",
        ),
        ("ModuleNotFoundError: No module named 'flash_attn'", "flash-attn-not-installed"),
        (
            "ModuleNotFoundError: No module named 'flash_attn.flash_attention'",
            "flash-attn-of-another-release",
        ),
        ("ImportError: numpy.core.multiarray failed to import", "numpy-not-loaded"),
        (
            "CMake Error: Could NOT find CUDA (missing: CUDA_CUDART_LIBRARY) (found version 12.5)",
            "unknown",
        ),
        # What only sounds like one.
        ("NameError: name 'use_cuda' is not defined", "python-name-undefined"),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", "connection-failed"),
        (
            "make: Warning: File 'x.o' has modification time 2 s in the future\nerror: a",
            "unknown",
        ),
        (
            "OSError: [Errno 28] inotify watch limit reached: No space left on device",
            "watches-used-up",
        ),
        (
            "RuntimeError: unable to open shared memory object </torch_1> in read-write mode: "
            "No such file or directory",
            "unknown",
        ),
        ("ninja: error: build.ninja:7: multiple rules generate x/caffe2_pb2.py", "unknown"),
        # What was asked for in words of other programs.
        ("please install PyTorch first: No module named 'torch'", "torch-wanted-first"),
        (
            "UserWarning: Error checking compiler version for cl: [WinError 2] introuvable",
            "c-compiler-missing",
        ),
        (
            "q4.obj : error LNK2001: symbole externe non résolu cublasHgemm",
            "cuda-library-not-named",
        ),
        ("undefined reference to `YAML::LoadFile(std::string const&)'", "string-abi-old"),
        ("undefined reference to `YAML::LoadFile(int)'", "undefined-reference"),
        ("failed call to cuInit: CUDA_ERROR_NO_DEVICE", "no-gpu-found"),
        (
            "dlopen(_C.so, 9): Library not loaded: @rpath/libATen.dylib\n  Reason: Incompatible "
            "library version: libshm.dylib requires version 1.0.0 or later",
            "unknown",
        ),
        # A wheel that is not there is why it is compiled, and not why that fails.
        (
            "ninja: build stopped: subcommand failed.\n"
            "    urllib.request.urlretrieve(wheel_url, wheel_filename)\n"
            "urllib.error.HTTPError: HTTP Error 404: Not Found",
            "unknown",
        ),
        ("urllib.error.HTTPError: HTTP Error 404: Not Found", "download-not-there"),
        # thrust is AMD's, too.
        (
            "fatal error: 'thrust/complex.h' file not found\nerror generated when compiling for "
            "gfx803.",
            "header-missing",
        ),
        ("fatal error: 'thrust/complex.h' file not found", "cccl-headers-moved"),
        # Python names a part only of a package that it found.
        ("ModuleNotFoundError: No module named 'lab.part'", "package-part-missing"),
        ("ModuleNotFoundError: No module named 'lab'", "module-missing"),
        ("ModuleNotFoundError: No module named 'google.protobuf'", "module-missing"),
        ("ModuleNotFoundError: No module named 'utils.general'", "module-missing"),
        (
            "ModuleNotFoundError: No module named 'triton.language'; 'triton' is not a package",
            "python-name-hidden",
        ),
        ("ImportError: No module named _th_sox", "compiled-part-missing"),
        ("ImportError: No module named _ctypes", "python-part-missing"),
        # An option of gcc is not one that a newer nvcc would know.
        ("nvcc fatal   : Unknown option '-fopenmp'", "nvcc-flag-of-host-compiler"),
        (
            "nvcc fatal   : Unknown option '-generate-dependencies-with-compile'",
            "nvcc-option-unknown",
        ),
        # What was mapped, loaded or cut off.
        ("OSError: libtorch.so: file too short", "library-file-damaged"),
        ("RuntimeError: storage has wrong size: expected 0 got 64", "checkpoint-damaged"),
        (
            "undefined symbol: _ZN8pybind116detail11type_casterIN2at6TensorEvE4castERKS3_",
            "extension-not-linked-with-torch-python",
        ),
        # A server that is reached and does not answer is not one that cannot be reached.
        (
            "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='h', port=443): Max retries "
            "exceeded with url: / (Caused by ReadTimeoutError('x'))",
            "unknown",
        ),
        ("ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "nccl-without-gpu"),
        # A number that CUDA gave.
        ("spconv/indice.cu 60\ncuda execution failed with error 2", "gpu-out-of-memory"),
        ("spconv/indice.cu 60\ncuda execution failed with error 98", "no-kernel-image"),
        (
            "ERROR: Invalid requirement: \"'git+https://lab/x.git'\": Expected package name",
            "requirement-not-valid",
        ),
        ("ValueError: invalid strategy name: `strategy='dp'`.", "lightning-strategy-unknown"),
        # What pip could choose from says whether it is the name or the Python.
        (
            "Could not find a version that satisfies the requirement lab-knn (from versions: none)",
            "pip-knows-no-release",
        ),
        (
            "Could not find a version that satisfies the requirement torch==2.0 (from versions: "
            "none)",
            "no-such-wheel",
        ),
        (
            "Could not find a version that satisfies the requirement torchvision==0.1 (from "
            "versions: 0.1.6, 0.1.7)",
            "no-such-wheel",
        ),
        (
            "Could not find a version that satisfies the requirement torch==1.5.0 (from versions: "
            "0.1.2, 0.1.2.post1, 1.4.0)",
            "no-such-wheel",
        ),
        # A library's own origin.
        ("Library not loaded: /usr/local/lib/libx.dylib", "macos-library-missing"),
        ("Library not loaded: /opt/homebrew/opt/libomp/lib/l.dylib", "homebrew-library-missing"),
        ("undefined reference to `std::ios_base::Init::Init()'", "libstdcxx-not-the-compilers"),
        ("undefined reference to `onnx::run(std::string const&)'", "another-onnx-linked"),
        ("/usr/bin/ld: cannot find -lcuda", "cuda-library-not-linked"),
        (r"'C:\\VC\\bin\\HostX64\\x64\\cl.exe' failed with exit status 2", "unknown"),
        (r"'C:\\VC\\bin\\HostX86\\x86\\cl.exe' failed with exit status 2", "visual-cpp-of-32-bits"),
        ("Missing variable is:\nCMAKE_CUDA_COMPILE_WHOLE_COMPILATION", "unknown"),
        ("ImportError: [WinError 127] x", "windows-library-missing"),
        (
            "nvidia-container-cli: initialization error: nvml error: driver/library version "
            "mismatch: unknown",
            "driver-library-mismatch",
        ),
    ],
)
def test_a_log_is_named_for_what_it_says_and_not_for_its_likes(log: str, name: str) -> None:
    assert (ids(diagnose(log.splitlines())) or ["unknown"])[0] == name


@pytest.mark.parametrize(
    ("log", "title"),
    [
        ("CUDA error: no kernel image is available for execution on the device", "or an extension"),
        ("RuntimeError: Attempting to deserialize object on CUDA device 3 but", "does not see"),
        ("x.cpp:3:1: error: 'runtime_error' is not a member of 'std'", "header of runtime_error"),
        ("ModuleNotFoundError: No module named 'pkg_resources'", "not there, or too new"),
        ("undefined symbol: cblas_sgemm_alloc", "lacks cblas_sgemm_alloc"),
        ("my_ext.so: undefined symbol: _ZN2at4nameEv", "does not fit the torch that it finds"),
        ("fatal error: TH/TH.h: No such file or directory", "is not found"),
        ("nvcc fatal   : Unknown option '-threads'", "does not know the option"),
        ("RuntimeError: CUDA error: unknown error", "does not say why"),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            "not loaded, or does not answer",
        ),
        (
            "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error",
            "does not answer any more",
        ),
        (
            "fatal: could not read Username for 'https://github.com': No such device or address",
            "private, or not there",
        ),
        (
            "PackageNotFoundError: No package metadata was found for The 'lab>=0.4' distribution "
            "was not found and is required by this application",
            "wants: lab",
        ),
        (
            "ImportError: DLL load failed while importing graph_cpu: The specified module could "
            "not be found.",
            "a compiled library, or one that it needs: graph_cpu",
        ),
        ("ModuleNotFoundError: No module named 'spconv.core_cc'", "was not installed whole"),
        (
            "python: Error while finding module specification for 'axolotl.cli.train' "
            "(ModuleNotFoundError: No module named 'axolotl')",
            "has no module axolotl",
        ),
    ],
)
def test_a_title_claims_no_more_than_the_line_says(log: str, title: str) -> None:
    assert title in diagnose([log]).named[0].title


@pytest.mark.parametrize(
    "line",
    [
        "Can't find it",
        "limit exceeded",
        "SomeOddError()",
        "Process ended: exit code 3",
        "-- Configuring incomplete, errors occurred!",
        "hash mismatch in x",
        "rsync: connection unexpectedly closed",
        "Restarting kernel...",
    ],
)
def test_what_sounds_like_a_failure_is_not_called_quiet(line: str) -> None:
    assert diagnose([line]).ended == "badly"


@pytest.mark.parametrize("line", ["程序启动时发生了某种问题", "не удалось запустить программу"])
def test_a_language_that_is_not_read_is_not_called_quiet(line: str) -> None:
    assert diagnose(["epoch 1", line]).ended == "badly"
    assert diagnose(["epoch 1", "epoch 2"]).ended == "quiet"


def test_what_was_overcome_is_told_apart() -> None:
    found = diagnose(RETRIED.splitlines())
    assert "clone-failed" in [item.id for item in found.overcome]


def test_a_failure_that_is_not_known_is_no_good_end() -> None:
    assert diagnose(["train.py: error: no such thing"]).ended == "badly"


# ---------------------------------------------------------------------------- any input


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
def test_any_encoding_is_read(encoding: str) -> None:
    text = f"[1/2] Übersetzung\r\n[2/2] link\r\n{KILLED}\r\n"
    found = of_bytes(text.encode(encoding))
    assert ids(found) == ["compiler-killed"]
    assert found.named[0].lines[0].number == 3


@pytest.mark.parametrize("packed", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_log_is_read(packed: object) -> None:
    assert callable(packed)
    assert ids(of_bytes(packed(f"x\n{KILLED}\n".encode()))) == ["compiler-killed"]


def test_what_a_cut_off_archive_holds_is_read() -> None:
    whole = gzip.compress(f"{KILLED}\n".encode() + b"".join(b"%d\n" % n**9 for n in range(90_000)))
    assert ids(of_bytes(whole[: len(whole) // 2])) == ["compiler-killed"]


def test_an_archive_of_files_is_said_to_be_one() -> None:
    with pytest.raises(ValueError, match="zip archive; unpack it"):
        of_bytes(b"PK\x03\x04....")


@pytest.mark.parametrize(
    "line",
    [
        "c++: fatal error: \x00Killed signal\x00 terminated program cc1plus",
        "c++: \x1b[01;31m\x1b[Kfatal error: \x1b[m\x1b[KKilled signal terminated program cc1plus",
        "c++: \x1b]8;;https://gcc.gnu.org/x\x1b\\fatal error\x1b]8;;\x1b\\: "
        "Killed signal terminated program cc1plus",
        "c++: \x1b]8;;https://gcc.gnu.org/x\x07fatal error\x1b]8;;\x07: "
        "Killed signal terminated program cc1plus",
        "c++: \x1b[38;2;255;0;0mfatal error: Killed\x1b[0m signal terminated program cc1plus",
        "c++: ^[[31mfatal error: Killed^[[0m signal terminated program cc1plus",
        "c++: \\u001b[31mfatal error: Killed\\u001b[0m signal terminated program cc1plus",
        "c++: \x9b31mfatal error: Killed signal terminated program cc1plus",
        "10%|#    | 1/9\r20%|##   | 2/9\r" + KILLED,
        "\x1b[?25l\x1b[2K\x1b[1G" + KILLED + "\x1b[?25h",
    ],
)
def test_what_a_terminal_is_told_does_not_hide_a_failure(line: str) -> None:
    found = of_bytes(line.encode() + b"\n")
    assert ids(found) == ["compiler-killed"]
    assert "\x1b" not in found.named[0].lines[0].text


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("c++: fatal error: Getötet signal terminated program cc1plus", "compiler-killed"),
        ("ld: schreiben: Auf dem Gerät ist kein Speicherplatz mehr verfügbar", "disk-full"),
        ("cp: erreur: Aucun espace disponible sur le périphérique", "disk-full"),
        ("tar: 写入错误: 设备上没有空间", "disk-full"),
        ("tar: 書き込みエラー: デバイスに空き領域がありません", "disk-full"),
        ("OSError: [Errno 28] Non c'è spazio sul device", "disk-full"),
        ("a.cpp:3:10: 致命错误： glog/logging.h：没有那个文件或目录", "header-missing"),
        ("/usr/bin/ld: -lcuda kann nicht gefunden werden", "cuda-library-not-linked"),
        ("/usr/bin/ld: ne peut trouver -lcuda", "cuda-library-not-linked"),
        ("Ungültiger Maschinenbefehl (Speicherabzug geschrieben)", "illegal-instruction"),
        ("Instruction non permise (core dumped)", "illegal-instruction"),
        ("非法指令 (核心已转储)", "illegal-instruction"),
        (
            "fatal: konnte nicht auf 'https://github.com/x.git/' zugreifen: "
            "Could not resolve host: github.com",
            "host-not-reached",
        ),
        (
            "foo.c:1:10: schwerwiegender Fehler: Python.h: Datei oder Verzeichnis nicht gefunden",
            "python-headers-missing",
        ),
        (
            "foo.c:1:10: erreur fatale: Python.h : Aucun fichier ou dossier de ce type",
            "python-headers-missing",
        ),
        ("foo.c:1:10: 致命错误：Python.h：没有那个文件或目录", "python-headers-missing"),
        (
            "foo.c:1:10: 致命的エラー: Python.h: そのようなファイルやディレクトリはありません",
            "python-headers-missing",
        ),
        ("'llamafactory-cli' 不是内部或外部命令，也不是可运行的程序", "program-missing"),
        ('Der Befehl "ninja" ist entweder falsch geschrieben oder konnte nicht', "program-missing"),
        ("'ninja' n'est pas reconnu en tant que commande interne", "program-missing"),
        ("无法将“ninja”项识别为 cmdlet、函数、脚本文件", "program-missing"),
        ("lltm.obj : error LNK2001: 无法解析的外部符号 run", "undefined-reference"),
    ],
)
def test_messages_in_other_languages_are_known(line: str, cause: str) -> None:
    found = of_bytes(f"{line}\n".encode())
    assert ids(found)[:1] == [cause]
    # It is quoted as it was said.
    assert found.named[0].lines[0].text == line


# ------------------------------------------------------------------------------- time


def test_twice_the_log_takes_no_more_than_about_twice_the_time() -> None:
    """Every line holds the text of some pattern, and none matches: the worst there is."""

    def taken(lines: int) -> float:
        line = "terminated program " * 8 + "cannot open shared object file undefined symbol {}\n"
        data = "".join(line.format(chr(97 + n % 26) * (n % 50)) for n in range(lines)).encode()
        begin = time.process_time()
        of_bytes(data)
        return time.process_time() - begin

    taken(100)
    small, large = taken(10_000), taken(40_000)
    # Quadratic would be sixteen times.
    assert large < 9 * small + 1


def test_a_line_without_an_end_takes_no_minutes() -> None:
    begin = time.process_time()
    of_bytes(b"undefined symbol: " * 400_000)
    of_bytes(b"a-" * 2_000_000)
    assert time.process_time() - begin < 60


@pytest.mark.parametrize(
    "end",
    [
        "Makefile:140: recipe for target 'all' failed\nmake: *** [all] Error 2",
        "Failed to run 'bash ../tools/build_pytorch_libs.sh'",
        "Pod: lab.worker-0 exited with code 1",
    ],
)
def test_a_target_that_was_built_is_no_good_end_of_a_log_that_failed(end: str) -> None:
    assert diagnose(["[ 34%] Built target libprotoc", *end.splitlines()]).ended == "badly"
    assert diagnose(end.splitlines()).ended == "badly"
