"""What is wrong with an installed torch follows from what was seen of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from torchsmith.checks import Check, worst
from torchsmith.diagnose.environment.examine import best_capability, examine
from torchsmith.diagnose.environment.libraries import blas_of
from torchsmith.diagnose.environment.packages import symbol_tells
from torchsmith.diagnose.environment.read import chosen_python
from torchsmith.diagnose.environment.seen import Built, FoundTorch, Pin, Seen, Shadowed
from torchsmith.errors import UsageError
from torchsmith.facts.files import shipped
from torchsmith.host.models import Host, InstalledGpu
from torchsmith.verify.probing import Loaded, ThreadPool, TorchFacts

pytestmark = pytest.mark.unit

SITE = "/env/lib/python3.11/site-packages"
TORCH = FoundTorch(f"{SITE}/torch", "2.6.0+cu124", ("2.6.0+cu124",))
FACTS = TorchFacts(
    version="2.6.0+cu124",
    cuda="12.4",
    cxx11_abi=False,
    config="  - CPU capability usage: AVX2\n",
    threads=8,
    features={"numpy": True, "lapack": True},
)
GOMP = f"{SITE}/torch/lib/libgomp-a34b3233.so.1"
HOST = Host(
    platform="linux-x86_64",
    gpus=(InstalledGpu(name="NVIDIA H100", arch="9.0"),),
    driver="550.90.07",
    cores=8,
    shm_bytes=16 << 30,
)
WELL = Seen(
    python="/env/bin/python",
    version="3.11.9",
    prefix="/env",
    host=HOST,
    torches=(TORCH,),
    imported=Check("python", "import torch", "pass", "2.6.0+cu124", seconds=2.0),
    facts=FACTS,
    loaded=Loaded(libraries=(GOMP,), gpus=1),
    archs=("sm_80", "sm_90", "compute_90"),
    numpy="2.1.0",
    cpu_flags=frozenset({"avx2", "fma"}),
    workers=8,
)
CPU_ONLY = msgspec.structs.replace(FACTS, cuda=None)


def replaced(**changes: object) -> Seen:
    return msgspec.structs.replace(WELL, **changes)


def on(**changes: object) -> Seen:
    return replaced(host=HOST.model_copy(update=changes))


def test_an_import_that_only_takes_long_is_not_answered_with_another_installation() -> None:
    slow = Check("python", "import torch", "fail", "did not end within 60 s")
    told = found(replaced(imported=slow), "import torch")
    assert "--timeout" in told.cure
    assert "nstall torch again" not in told.cure


def found(seen: Seen, subject: str) -> Check:
    matching = [item for item in examine(seen, shipped()) if item.name == subject]
    assert matching, [item.name for item in examine(seen, shipped())]
    return matching[0]


def gpu(name: str, arch: str) -> dict[str, object]:
    return {"gpus": (InstalledGpu(name=name, arch=arch),)}


def test_nothing_is_wrong_where_everything_fits() -> None:
    findings = examine(WELL, shipped())
    assert worst(findings) == "pass"
    assert not [item for item in findings if item.why or item.cure]


def test_every_finding_that_matters_says_why_and_what_to_do() -> None:
    seen = replaced(
        host=HOST.model_copy(update={"driver": "450.80.02", "shm_bytes": 64 << 20}),
        numpy="",
        archs=("sm_50",),
        pins=(Pin("nvidia-cudnn-cu12", "==9.1.0.70", "", False),),
    )
    for item in examine(seen, shipped()):
        assert item.status in ("pass", "info") or (item.why and item.cure), item


# ------------------------------------------------------------------- driver and GPUs


@pytest.mark.parametrize(
    ("driver", "rating"),
    [("550.54.14", "pass"), ("535.104.05", "warn"), ("520.61.05", "fail"), (None, "info")],
)
def test_the_driver_is_held_against_the_cuda_of_torch(driver: str | None, rating: str) -> None:
    assert found(on(driver=driver), "driver").status == rating


@pytest.mark.parametrize(
    ("arch", "archs", "rating"),
    [
        ("9.0", ("sm_80", "sm_90"), "pass"),
        ("8.6", ("sm_80", "sm_90"), "pass"),
        ("12.0", ("sm_80", "sm_90", "compute_90"), "warn"),
        ("12.0", ("sm_80", "sm_90"), "fail"),
        ("6.1", ("sm_70", "sm_80", "compute_80"), "fail"),
        ("9.0", ("sm_80", "sm_90a"), "pass"),
        ("10.0", ("sm_90a",), "fail"),
        ("9.0", (), "info"),
    ],
)
def test_a_gpu_needs_code_of_its_own_or_ptx(arch: str, archs: tuple[str, ...], rating: str) -> None:
    assert found(replaced(host=on(**gpu("a GPU", arch)).host, archs=archs), "GPU").status == rating


def test_a_gpu_that_torch_cannot_use_is_a_failure_with_its_own_words() -> None:
    said = "Unexpected error from cudaGetDeviceCount(). Error 804"
    seen = replaced(loaded=Loaded(gpus=0, gpu_trouble=said))
    assert found(seen, "GPU from torch").status == "fail"
    assert said in found(seen, "GPU from torch").found
    hidden = msgspec.structs.replace(seen, environ={"CUDA_VISIBLE_DEVICES": ""})
    assert found(hidden, "GPU from torch").status == "warn"


def test_a_torch_without_cuda_leaves_a_gpu_unused() -> None:
    assert found(replaced(facts=CPU_ONLY), "CUDA").status == "warn"
    assert (
        found(replaced(facts=CPU_ONLY, host=on(gpus=(), driver=None).host), "CUDA").status == "info"
    )


@pytest.mark.parametrize(
    ("name", "libcuda", "rating"),
    [
        ("NVIDIA GeForce RTX 3090", "560.35.05", "fail"),
        ("NVIDIA H100 80GB HBM3", "560.35.05", "warn"),
        ("NVIDIA H100 80GB HBM3", "535.104.05", "fail"),
    ],
)
def test_a_libcuda_that_is_not_the_drivers_is_found(name: str, libcuda: str, rating: str) -> None:
    path = f"/usr/local/cuda/compat/libcuda.so.{libcuda}"
    seen = replaced(host=on(**gpu(name, "9.0")).host, libcuda=(path, libcuda))
    assert found(seen, "forward compatibility").status == rating
    assert path in found(seen, "forward compatibility").found


def test_the_drivers_own_libcuda_is_not_mentioned() -> None:
    seen = replaced(libcuda=("/usr/lib/libcuda.so.550.90.07", "550.90.07"))
    assert "forward compatibility" not in {item.name for item in examine(seen, shipped())}


# ------------------------------------------------------------------------ libraries


def test_two_kinds_of_openmp_are_warned_of_and_two_copies_are_told() -> None:
    conda = "/env/lib/libiomp5.so"
    two = found(replaced(loaded=Loaded(libraries=(GOMP, conda))), "OpenMP")
    assert two.status == "warn"
    assert "libgomp and libiomp5" in two.found
    copies = (GOMP, f"{SITE}/scikit_learn.libs/libgomp-e985bcbb.so.1.0.0")
    assert found(replaced(loaded=Loaded(libraries=copies)), "OpenMP").status == "info"
    lying = replaced(openmp=(conda,))
    assert found(lying, "OpenMP beside it").status == "info"
    allowed = replaced(
        loaded=Loaded(libraries=(GOMP, conda)), environ={"KMP_DUPLICATE_LIB_OK": "TRUE"}
    )
    assert "only silences" in found(allowed, "OpenMP").why


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/usr/lib/x86_64-linux-gnu/blas/libblas.so.3.11.0", "reference BLAS"),
        ("/usr/lib/x86_64-linux-gnu/openblas-serial/libblas.so.3", "single-threaded OpenBLAS"),
        ("/usr/lib/aarch64-linux-gnu/openblas-pthread/libopenblasp-r0.3.21.so", "OpenBLAS"),
        ("/opt/conda/lib/libmkl_rt.so.2", "MKL"),
        ("/usr/lib/x86_64-linux-gnu/libm.so.6", ""),
    ],
)
def test_a_blas_is_known_by_its_place(path: str, kind: str) -> None:
    assert blas_of(path) == kind


def test_a_slow_blas_is_warned_of() -> None:
    folder = "/usr/lib/x86_64-linux-gnu"
    reference = replaced(loaded=Loaded(libraries=(f"{folder}/blas/libblas.so.3.11.0",)))
    assert found(reference, "BLAS").status == "warn"
    assert "libopenblas0-pthread" in found(reference, "BLAS").cure
    both = (f"{folder}/lapack/liblapack.so.3", f"{folder}/openblas-pthread/libopenblasp.so")
    assert found(replaced(loaded=Loaded(libraries=both)), "BLAS").status == "pass"
    path = f"{SITE}/torch/lib/libopenblas.so.0"
    serial = Loaded(libraries=(path,), pools=(ThreadPool(path, threads=1, parallel=0),))
    assert "one thread" in found(replaced(loaded=serial), "BLAS").found


def test_an_openblas_that_does_not_know_the_cpu_is_warned_of() -> None:
    path = f"{SITE}/torch.libs/libopenblas-1.so.0"
    old = Loaded(libraries=(path,), pools=(ThreadPool(path, core="Prescott"),))
    new = Loaded(libraries=(path,), pools=(ThreadPool(path, core="Haswell"),))
    modern = frozenset(["avx2", "avx512f"])
    warned = found(replaced(loaded=old, cpu_flags=modern), "BLAS")
    assert warned.status == "warn"
    assert "OPENBLAS_CORETYPE=SKYLAKEX" in warned.cure
    assert found(replaced(loaded=new, cpu_flags=modern), "BLAS").status == "pass"
    assert found(replaced(loaded=old, cpu_flags=frozenset(["sse3"])), "BLAS").status == "pass"


def test_the_blas_of_another_package_is_not_torchs() -> None:
    numpy = f"{SITE}/numpy.libs/libscipy_openblas64_-32a4b2a6.so"
    own = f"{SITE}/torch/lib/libopenblas.so.0"
    assert "inside torch's own" in found(replaced(loaded=Loaded(libraries=(numpy,))), "BLAS").found
    two = found(replaced(loaded=Loaded(libraries=(numpy, own))), "two OpenBLAS")
    assert two.status == "info"
    assert own in two.found


def test_no_lapack_is_warned_of() -> None:
    facts = msgspec.structs.replace(FACTS, features={"lapack": False})
    assert found(replaced(facts=facts), "LAPACK").status == "warn"


def test_a_library_that_hides_a_bundled_one_is_warned_of() -> None:
    offered = "/usr/local/cuda-11.8/lib64/libcublas.so.12"
    hidden = Shadowed("libcublas.so.12", offered, f"{SITE}/nvidia/cublas/lib", "LD_LIBRARY_PATH")
    waiting = replaced(shadowed=(hidden,))
    assert "not loaded so far" in found(waiting, "LD_LIBRARY_PATH").found
    used = replaced(shadowed=(hidden,), loaded=Loaded(libraries=(offered,)))
    assert "is loaded instead of" in found(used, "LD_LIBRARY_PATH").found
    harmless = replaced(environ={"LD_LIBRARY_PATH": "/opt/mine"})
    assert found(harmless, "LD_LIBRARY_PATH").status == "pass"


def test_nvidias_libraries_are_held_against_what_torch_asks_for() -> None:
    fits = Pin("nvidia-cublas-cu12", "==12.4.5.8", "12.4.5.8", True)
    other = Pin("nvidia-cudnn-cu12", "==9.1.0.70", "9.5.1.17", False)
    missing = Pin("nvidia-nccl-cu12", "==2.21.5", "", False)
    subject = "NVIDIA's libraries"
    assert found(replaced(pins=(fits,)), subject).status == "pass"
    assert found(replaced(pins=(fits, other)), subject).status == "warn"
    assert "wants ==9.1.0.70" in found(replaced(pins=(other,)), subject).found
    assert found(replaced(pins=(fits, missing)), subject).status == "fail"


def test_neighbours_that_end_the_process_fail_it() -> None:
    seen = replaced(loaded=Loaded(lost="ended by SIGABRT"))
    assert found(seen, "neighbours").status == "fail"
    unimported = replaced(loaded=Loaded(unimported={"sklearn": "ImportError: x"}))
    assert "scikit-learn" in found(unimported, "sklearn").cure


# ------------------------------------------------------------------------- packages


def test_an_import_that_fails_is_named_by_what_is_known() -> None:
    said = "ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by x)"
    check = Check("python", "import torch", "fail", said, detail=f"Traceback\n{said}")
    item = found(replaced(imported=check, facts=TorchFacts()), "import torch")
    assert item.status == "fail"
    assert "libstdc++" in f"{item.why}{item.cure}"


def test_a_second_torch_is_told_with_the_one_that_is_imported() -> None:
    own = FoundTorch("/root/.local/lib/python3.11/site-packages/torch", "2.1.0")
    item = found(replaced(torches=(own, TORCH)), "several torches")
    assert item.found.startswith("2.1.0 in /root/.local")
    assert "PYTHONNOUSERSITE" in item.cure
    here = replaced(here="/src/pytorch/torch")
    assert found(here, "torch here").status == "warn"


@pytest.mark.parametrize(
    ("version", "recorded", "half"),
    [
        ("2.6.0+cpu", ("2.6.0+cpu",), False),
        ("2.6.0+cpu", ("2.6.0",), False),
        ("2.6.0", (), False),
        ("2.6.0", ("2.5.1", "2.6.0"), True),
        ("2.6.0", ("2.5.1",), True),
    ],
)
def test_a_torch_put_over_another_is_half_a_torch(
    version: str, recorded: tuple[str, ...], half: bool
) -> None:
    seen = replaced(torches=(FoundTorch(TORCH.path, version, recorded),))
    assert ("half a torch" in {item.name for item in examine(seen, shipped())}) == half


@pytest.mark.parametrize(
    ("numpy", "torch", "bridge", "rating"),
    [
        ("2.1.0", "2.2.2", False, "fail"),
        ("1.26.4", "2.2.2", True, "pass"),
        ("2.1.0", "2.3.0", True, "pass"),
        ("2.1.0", "2.6.0", False, "fail"),
    ],
)
def test_numpy_is_held_against_torch(numpy: str, torch: str, bridge: bool, rating: str) -> None:
    facts = msgspec.structs.replace(FACTS, version=torch, features={"numpy": bridge})
    assert found(replaced(numpy=numpy, facts=facts), "NumPy").status == rating


def test_a_companion_of_another_torch_is_told_with_the_right_one() -> None:
    vision = Built("torchvision", "0.20.1", "torch==2.5.1", False)
    item = found(replaced(built=(vision,)), "torchvision")
    assert item.status == "warn"
    assert "torchvision==0.21.0" in item.cure
    broken = Check("torchvision", "nms", "fail", "operator torchvision::nms does not exist")
    item = found(replaced(built=(vision,), checks=(broken,)), "torchvision")
    assert item.status == "fail"
    assert "nms" in item.why
    fits = Built("torchvision", "0.21.0", "torch==2.6.0", True)
    assert found(replaced(built=(fits,)), "torchvision").status == "pass"


@pytest.mark.parametrize("torch", ["2.7.0.dev20250101+cu126", "2.6.0a0+git1234", "unknown", ""])
def test_a_torch_of_any_name_is_looked_at(torch: str) -> None:
    vision = Built("torchvision", "0.20.1", "torch==2.5.1", False)
    facts = msgspec.structs.replace(FACTS, version=torch, cuda="12.4" if torch else "odd")
    seen = replaced(
        facts=facts, numpy="2.0.0rc1", built=(vision,), torches=(FoundTorch("/torch", torch),)
    )
    assert found(seen, "torchvision").status == "warn"


def test_an_extension_that_cannot_be_imported_is_found_by_its_module() -> None:
    item = Built("torch-scatter", "2.1.2", modules=("torch_scatter",))
    broken = Check("extensions", "import torch_scatter", "fail", "ImportError: no")
    assert found(replaced(built=(item,), checks=(broken,)), "torch-scatter").status == "fail"


@pytest.mark.parametrize(
    ("symbol", "abi", "words"),
    [
        ("_ZN3c106detail14torchCheckFailEPKcS2_jRKSs", True, "without the C++11 ABI"),
        (
            "_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traits"
            "IcESaIcEEE",
            False,
            "compiled with the C++11 ABI",
        ),
        ("_ZNK2at6Tensor6deviceEv", True, "another release"),
        ("_ZN5torch8autograd8VariableC1Ev", None, "another release"),
        ("cublasLtGetVersion", True, "No library that is loaded"),
    ],
)
def test_a_symbols_name_tells_the_kind_of_mismatch(
    symbol: str, abi: bool | None, words: str
) -> None:
    facts = msgspec.structs.replace(FACTS, cxx11_abi=abi)
    assert words in symbol_tells(symbol, replaced(facts=facts))


# -------------------------------------------------------------------------- machine


@pytest.mark.parametrize(
    ("flags", "best"),
    [
        ({"avx2", "fma", "avx512vl", "avx512bw", "avx512dq"}, "AVX512"),
        ({"avx2", "fma", "avx512f"}, "AVX2"),
        ({"sse4_2"}, ""),
        ({"asimd", "sve"}, ""),
    ],
)
def test_what_a_processor_can_do_follows_from_its_flags(flags: set[str], best: str) -> None:
    assert best_capability(frozenset(flags)) == best


def test_a_lower_capability_than_the_processors_is_warned_of() -> None:
    facts = msgspec.structs.replace(FACTS, config="  - CPU capability usage: DEFAULT\n")
    assert found(replaced(facts=facts), "CPU capability").status == "warn"
    forced = replaced(facts=facts, environ={"ATEN_CPU_CAPABILITY": "default"})
    assert "unset ATEN_CPU_CAPABILITY" in found(forced, "CPU capability").cure
    assert found(WELL, "CPU capability").status == "pass"


def test_threads_are_held_against_cores() -> None:
    many = msgspec.structs.replace(FACTS, threads=64)
    assert "OMP_NUM_THREADS=8" in found(replaced(facts=many), "threads").cure
    one = msgspec.structs.replace(FACTS, threads=1)
    asked = replaced(facts=one, environ={"OMP_NUM_THREADS": "1"})
    assert "unset OMP_NUM_THREADS" in found(asked, "threads").cure


@pytest.mark.parametrize(
    ("size", "workers", "rating"),
    [(64 << 20, 8, "warn"), (64 << 20, 0, "pass"), (8 << 30, 48, "pass"), (8 << 30, 96, "warn")],
)
def test_shared_memory_is_held_against_workers(size: int, workers: int, rating: str) -> None:
    seen = msgspec.structs.replace(on(shm_bytes=size), workers=workers)
    assert found(seen, "/dev/shm").status == rating


# ------------------------------------------------------------ which environment is meant


def test_the_environment_that_is_switched_on_is_meant(tmp_path: Path) -> None:
    for name in ("venv/bin/python", "conda/bin/python", "bin/python3"):
        python = tmp_path / name
        python.parent.mkdir(parents=True)
        python.write_text("#!/bin/sh\n")
        python.chmod(0o755)
    environ = {"PATH": str(tmp_path / "bin"), "CONDA_PREFIX": str(tmp_path / "conda")}
    assert chosen_python(None, environ) == tmp_path / "conda"
    environ["VIRTUAL_ENV"] = str(tmp_path / "venv")
    assert chosen_python(None, environ) == tmp_path / "venv"
    assert chosen_python(None, {"PATH": str(tmp_path / "bin")}) == tmp_path / "bin/python3"
    with pytest.raises(UsageError, match="no Python on the path"):
        chosen_python(None, {"PATH": str(tmp_path)})


def test_it_says_where_cuda_s_libraries_were_loaded_from() -> None:
    loaded = (
        GOMP,
        "/usr/lib/libcudart.so.12",
        "/usr/lib/libcublas.so.12",
        f"{SITE}/x/libnccl.so.2",
    )
    told = found(replaced(loaded=Loaded(libraries=loaded, gpus=1)), "CUDA's libraries")
    assert told.found == (
        f"libnccl.so.2 from {SITE}/x; libcublas.so.12 libcudart.so.12 from /usr/lib"
    )
    assert told.status == "info"
    assert "linked statically" in found(WELL, "CUDA's libraries").found
    without = [item.name for item in examine(replaced(facts=CPU_ONLY), shipped())]
    assert "CUDA's libraries" not in without


def test_a_capability_of_two_words_is_told_whole() -> None:
    facts = msgspec.structs.replace(FACTS, config="  - CPU capability usage: NO AVX\n  - Next\n")
    told = found(replaced(facts=facts, cpu_flags=frozenset()), "CPU capability")
    assert told.found == "NO AVX"
