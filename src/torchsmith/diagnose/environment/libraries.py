"""Libraries that meet in one process: OpenMP, BLAS, and what the loader was told to prefer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchsmith.checks import Check, few
from torchsmith.diagnose.environment.seen import Seen
from torchsmith.verify.linkage import of_cuda, openmp_runtime
from torchsmith.verify.probing import ThreadPool

# By a part of the file's name or of its folder; the first that fits. Debian keeps its reference
# BLAS in …/blas/libblas.so.3 and OpenBLAS in …/openblas-pthread/ or …/openblas-serial/.
_BLAS = (
    ("/openblas-serial/", "single-threaded OpenBLAS"),
    ("openblas", "OpenBLAS"),
    ("libmkl_core", "MKL"),
    ("libmkl_rt", "MKL"),
    ("libblis", "BLIS"),
    ("libatlas", "ATLAS"),
    ("libnvpl_blas", "NVPL"),
    ("libarmpl", "Arm Performance Libraries"),
    ("/atlas/", "ATLAS"),
    ("libblas.so", "reference BLAS"),
    ("liblapack.so", "reference LAPACK"),
)

# The kernels of OpenBLAS that use no AVX: for old CPUs, and for those it does not know.
_BEFORE_AVX = frozenset(
    [
        "athlon",
        "atom",
        "banias",
        "barcelona",
        "bobcat",
        "coppermine",
        "core2",
        "dunnington",
        "generic",
        "katmai",
        "nano",
        "nehalem",
        "northwood",
        "opteron",
        "opteron_sse3",
        "penryn",
        "prescott",
    ]
)


def judge_libraries(seen: Seen) -> Iterator[Check]:
    """Every line about libraries in one process."""
    if seen.loaded.lost:
        found = f"a process with torch and its neighbours was lost: {seen.loaded.lost}"
        why = "Importing them together ends the process."
        cure = "Import them one by one beside torch to find which; two OpenMPs do this most often."
        yield Check("libraries", "neighbours", "fail", found, why=why, cure=cure)
    for name, message in seen.loaded.unimported.items():
        why = f"{name} is installed, and cannot be imported beside torch."
        first = name.partition(".")[0]
        package = {"sklearn": "scikit-learn", "cv2": "opencv-python"}.get(first, first)
        yield Check(
            "libraries",
            name,
            "warn",
            message,
            why=why,
            cure=f"pip install --force-reinstall {package}",
        )
    yield from _openmp(seen)
    yield from _blas(seen)
    yield from _cuda(seen)
    yield from _shadowed(seen)
    yield from _pins(seen)


def _openmp(seen: Seen) -> Iterator[Check]:
    loaded = [path for path in seen.loaded.libraries if openmp_runtime(path)]
    kinds = sorted({openmp_runtime(path) for path in loaded})
    found = few(loaded) or "none"
    if len(kinds) > 1:
        allowed = seen.environ.get("KMP_DUPLICATE_LIB_OK")
        why = (
            "Two kinds of OpenMP in one process start twice the threads, hang or crash, or end it "
            'with "OMP: Error #15".'
        )
        if allowed:
            why += " KMP_DUPLICATE_LIB_OK only silences that."
        yield Check(
            "libraries",
            "OpenMP",
            "warn",
            f"{' and '.join(kinds)}: {found}",
            why=why,
            cure=_one(seen),
        )
    elif len(loaded) > 1:
        why = (
            "Each copy has threads of its own: where both are at work, there are twice as many as "
            "cores."
        )
        cure = (
            "Nothing breaks; if a program that uses both is slow, OMP_NUM_THREADS, or "
            "threadpoolctl.threadpool_limits around the other one."
        )
        yield Check(
            "libraries", "OpenMP", "info", f"{len(loaded)} copies: {found}", why=why, cure=cure
        )
    elif loaded:
        yield Check("libraries", "OpenMP", "pass", found)
    unused = sorted({*seen.openmp} - {*loaded})
    others = {openmp_runtime(path) for path in unused} - set(kinds)
    if loaded and others:
        yield Check(
            "libraries",
            "OpenMP beside it",
            "info",
            f"{few(unused)}: not loaded by what was imported",
            why="Whoever loads it brings a second runtime into the process.",
        )


def _one(seen: Seen) -> str:
    for variable in ("LD_PRELOAD", "LD_LIBRARY_PATH"):
        if any(kind in seen.environ.get(variable, "") for kind in ("omp", "mkl")):
            return f"Take it out of {variable}; it is enough that torch brings its own."
    return (
        "Take all packages from one place: all from conda-forge, or all from PyPI. Until then "
        "import torch first, and MKL_THREADING_LAYER=GNU where MKL brought the second."
    )


def blas_of(path: str) -> str:
    """Which BLAS a library is by its name and folder; empty for what is none."""
    return next((kind for part, kind in _BLAS if part in path), "")


def _blas(seen: Seen) -> Iterator[Check]:
    if not seen.facts.version:
        return
    found = {path: kind for path in seen.loaded.libraries if (kind := blas_of(path))}
    own = {path: kind for path, kind in found.items() if not _another(path)}
    build = seen.facts.build
    name = build.settings.get("BLAS_INFO", "") or ("mkl" if build.mkl else "")
    if seen.facts.has("lapack") is False:
        yield Check(
            "libraries",
            "LAPACK",
            "warn",
            "torch is built without it",
            why="torch.linalg (solve, svd, eigh) stops on the CPU.",
            cure="Build it with BLAS = 'OpenBLAS' or MKL; pip's and conda's torch have one.",
        )
    slow = {path: kind for path, kind in own.items() if kind.startswith("reference")}
    quick = [kind for kind in own.values() if not kind.startswith("reference")]
    serial = [path for path, kind in own.items() if kind.startswith("single-threaded")]
    serial += [pool.path for pool in seen.loaded.pools if pool.parallel == 0 and pool.path in own]
    if slow and not quick and not build.mkl:
        yield Check(
            "libraries",
            "BLAS",
            "warn",
            f"{', '.join(dict.fromkeys(slow.values()))}: {few(list(slow))}",
            why="It is written to be read, not to be fast: matrix products take ten times as long.",
            cure="apt-get install libopenblas0-pthread; update-alternatives --config "
            "libblas.so.3-$(uname -m)-linux-gnu shows which one serves.",
        )
    elif serial:
        yield Check(
            "libraries",
            "BLAS",
            "warn",
            f"OpenBLAS for one thread: {few(list(dict.fromkeys(serial)))}",
            why="Matrix products use one core.",
            cure="apt-get install libopenblas0-pthread and remove libopenblas0-serial.",
        )
    elif mistaken := next((pool for pool in seen.loaded.pools if _mistaken(pool, seen)), None):
        better = "SKYLAKEX" if "avx512f" in seen.cpu_flags else "HASWELL"
        yield Check(
            "libraries",
            "BLAS",
            "warn",
            f"OpenBLAS takes this CPU for a {mistaken.core}: {mistaken.path}",
            why="It does not know the CPU: matrix products take several times as long.",
            cure=f"OPENBLAS_CORETYPE={better} in the environment, or a newer OpenBLAS.",
        )
    else:
        shown = ", ".join(f"{kind} ({path})" for path, kind in own.items())
        yield Check(
            "libraries", "BLAS", "pass", shown or f"{name or 'one'} inside torch's own library"
        )
    yield from _two(sorted(own), sorted(set(found) - set(own)))


def _mistaken(pool: ThreadPool, seen: Seen) -> bool:
    """Whether torch's OpenBLAS computes as if the CPU had no AVX."""
    old = pool.core.lower() in _BEFORE_AVX
    return old and "avx2" in seen.cpu_flags and not _another(pool.path)


def _another(path: str) -> bool:
    """Whether a wheel other than torch's brought a library for itself: numpy.libs, scipy.libs."""
    folder = path.rpartition("/")[0].rpartition("/")[2]
    return folder.endswith(".libs") and folder != "torch.libs"


def _two(torch: Sequence[str], others: Sequence[str]) -> Iterator[Check]:
    """OpenBLAS twice: not wrong, and worth knowing where threads are counted."""
    ours = [path for path in torch if "OpenBLAS" in blas_of(path)]
    theirs = [path for path in others if "OpenBLAS" in blas_of(path)]
    if ours and theirs:
        yield Check(
            "libraries",
            "two OpenBLAS",
            "info",
            f"torch's {ours[0]}, and {few(theirs)}",
            why="Each has threads of its own: a program that uses both at once has twice as many "
            "as cores.",
            cure="If that is slow: OPENBLAS_NUM_THREADS, or threadpoolctl around the other's part.",
        )


def _cuda(seen: Seen) -> Iterator[Check]:
    """Which of CUDA's libraries are linked dynamically, and from where they were loaded."""
    if not seen.facts.cuda:
        return
    folders: dict[str, list[str]] = {}
    for path in sorted(seen.loaded.libraries):
        folder, _, name = path.rpartition("/")
        if of_cuda(name):
            folders.setdefault(folder, []).append(name)
    message = [f"{' '.join(names)} from {folder}" for folder, names in folders.items()]
    if not any(name.startswith("libcudart") for names in folders.values() for name in names):
        message.append("libcudart inside torch's own, linked statically")
    yield Check("libraries", "CUDA's libraries", "info", "; ".join(message))


def _shadowed(seen: Seen) -> Iterator[Check]:
    loaded = set(seen.loaded.libraries)
    used = [item for item in seen.shadowed if item.offered in loaded]
    unloaded = [item for item in seen.shadowed if item.offered not in loaded]
    for item in used[:4]:
        yield Check(
            "libraries",
            item.variable,
            "warn",
            f"{item.offered} is loaded instead of {item.bundled}",
            why="This torch was built and tried with the library it brings; another release of it "
            "misses symbols or computes something else.",
            cure=f"Take that folder out of {item.variable}.",
        )
    if unloaded:
        names = few([f"{item.offered} for {item.bundled}" for item in unloaded], 2)
        yield Check(
            "libraries",
            unloaded[0].variable,
            "info" if used else "warn",
            f"offers {names}: not loaded so far",
            why="Libraries that are loaded later (cuDNN's parts, cuBLAS) may be found there first.",
            cure=f"Take that folder out of {unloaded[0].variable}.",
        )
    if not seen.shadowed:
        for variable in ("LD_LIBRARY_PATH", "LD_PRELOAD"):
            if seen.environ.get(variable):
                yield Check(
                    "libraries", variable, "pass", "set; it hides nothing that torch brings"
                )


def _pins(seen: Seen) -> Iterator[Check]:
    if not seen.pins:
        return
    missing = [f"{pin.name}{pin.wanted}" for pin in seen.pins if not pin.found]
    wrong = [
        f"{pin.name} {pin.found} (wants {pin.wanted})"
        for pin in seen.pins
        if pin.found and not pin.fits
    ]
    torch = seen.facts.version or seen.torches[0].version
    cure = f"pip install --force-reinstall 'torch=={torch}' brings those it was built with."
    if missing:
        why = "Torch loads them when it is imported or when a GPU is first used."
        yield Check(
            "libraries",
            "NVIDIA's libraries",
            "fail",
            f"missing: {few(missing)}",
            why=why,
            cure=cure,
        )
    if wrong:
        why = (
            "Another library replaced the one torch asks for: symbols may be missing, and cuDNN "
            "refuses to mix its parts."
        )
        yield Check("libraries", "NVIDIA's libraries", "warn", few(wrong), why=why, cure=cure)
    if not missing and not wrong:
        yield Check(
            "libraries", "NVIDIA's libraries", "pass", f"all {len(seen.pins)} as torch asks for"
        )
