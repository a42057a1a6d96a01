"""Reading what `torch.__config__.show()` prints, from 1.1 to today."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

_SETTING = re.compile(r",\s+(?=[A-Z][A-Z0-9_]*=)")
_CODE = re.compile(r"code=\[?((?:(?:sm|compute)_\d+[a-z]?,?)+)")
_DEFINE = re.compile(r"(?:^|\s)-DUSE_([A-Z0-9_]+)(?:=(\S+))?(?=\s|$)")
_ON = frozenset({"on", "1", "true", "yes"})
_OFF = frozenset({"off", "0", "false", "no", ""})

# Features whose setting has another name than USE_<feature>.
_SETTINGS = {"cupti": "USE_CUPTI_SO", "static_cuda": "CAFFE2_STATIC_LINK_CUDA"}


class BuildConfig(Struct, frozen=True):
    """How a torch was built, by its own account; empty where it does not say."""

    compiler: str = ""
    cxx: str = ""
    mkl: str = ""
    mkldnn: str = ""
    openmp: str = ""
    cpu: str = ""
    cuda: str = ""
    archs: tuple[str, ...] = ()
    cudnn: str = ""
    magma: str = ""
    settings: Mapping[str, str] = {}

    def setting(self, feature: str) -> bool | None:
        """Whether a feature was switched on; None where nothing is said about it."""
        name = _SETTINGS.get(feature, f"USE_{feature.upper()}")
        value = self.settings.get(name, "").strip().lower()
        if name in self.settings and value in _ON | _OFF:
            return value in _ON
        defines = {
            found[1]: found[2] for found in _DEFINE.finditer(self.settings.get("CXX_FLAGS", ""))
        }
        if feature.upper() in defines:
            return (defines[feature.upper()] or "1").lower() in _ON
        return None


def parse_config(text: str) -> BuildConfig:
    """Return what the text says; lines it does not know are left alone."""
    fields: dict[str, str] = {}
    settings: dict[str, str] = {}
    for line in text.splitlines():
        item = line.strip().removeprefix("- ").strip()
        if item.startswith("Build settings:"):
            settings = _settings(item.removeprefix("Build settings:"))
        else:
            for name, pattern in _LINES.items():
                if name not in fields and (found := pattern.match(item)):
                    fields[name] = found[found.lastindex or 0]
    return BuildConfig(
        compiler=fields.get("compiler", ""),
        cxx=fields.get("cxx", ""),
        mkl=fields.get("mkl", ""),
        mkldnn=fields.get("mkldnn", ""),
        openmp=fields.get("openmp", ""),
        cpu=fields.get("cpu", ""),
        cuda=fields.get("cuda", ""),
        archs=archs_of(fields.get("archs", "")),
        # The line itself divides the number as cuDNN 8 and older meant it: 9.19 reads 91.9.
        cudnn=settings.get("CUDNN_VERSION") or fields.get("cudnn", ""),
        magma=fields.get("magma", ""),
        settings=settings,
    )


_LINES = {
    "compiler": re.compile(r"((?:GCC|clang|MSVC) \S+)", re.IGNORECASE),
    "cxx": re.compile(r"C\+\+ Version: (\d+)"),
    # MKL-DNN says "Intel(R)" too.
    "mkl": re.compile(r"Intel\(R\) (?:oneAPI )?Math Kernel Library Version (\S+)"),
    "mkldnn": re.compile(r"Intel\(R\) MKL-DNN v(\S+)"),
    "openmp": re.compile(r"OpenMP (\d+)"),
    "cpu": re.compile(r"CPU capability usage: (\S[^\n]*\S)"),
    "cuda": re.compile(r"CUDA Runtime (\S+)"),
    "archs": re.compile(r"NVCC architecture flags: (.*)"),
    "cudnn": re.compile(r"CuDNN (\d[\d.]*)"),
    "magma": re.compile(r"Magma (\S+)"),
}


def _settings(text: str) -> dict[str, str]:
    # Values hold commas (-gencode arch=…,code=…); only a new name in capitals starts the next.
    pairs = _SETTING.split(text.strip().rstrip(",").rstrip())
    return {
        name: value.strip() for name, _, value in (pair.partition("=") for pair in pairs) if name
    }


# A path begins where none goes on: /opt/rh/gcc-toolset-11/root/usr is nobody's home.
_PATH = re.compile(r"(?<![\w./+~@%-])/[^\s,;:\"'\\]+")
_HOMES = ("/home/", "/root/", "/Users/")


def foreign_paths(text: str, places: Sequence[str] = ()) -> tuple[str, ...]:
    """The paths a text names that lie in somebody's home or in one of these folders."""
    starts = (*_HOMES, *(f"{place.rstrip('/')}/" for place in places if place.strip("/")))
    found = [match[0] for match in _PATH.finditer(text) if f"{match[0]}/".startswith(starts)]
    return tuple(dict.fromkeys(found))


def archs_of(flags: str) -> tuple[str, ...]:
    """sm_86 for machine code, compute_86 for PTX, in order and once each."""
    found = [name for match in _CODE.finditer(flags) for name in match[1].split(",") if name]
    return tuple(dict.fromkeys(found))
