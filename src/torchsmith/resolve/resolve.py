"""The door of this room: one variant in, a resolution or every conflict out."""

from __future__ import annotations

from collections.abc import Mapping

from torchsmith.facts.conditions import Place, troubles
from torchsmith.facts.cuda import find_toolkit
from torchsmith.facts.files import Facts, addresses
from torchsmith.facts.models import Mode, TorchRelease
from torchsmith.facts.ranges import python_release, release, version_range
from torchsmith.facts.torch import entry_for, find_release, index_pythons, published_archs, releases
from torchsmith.host.models import Host
from torchsmith.recipe.matrix import Variant
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.archs import ArchDecisions, decide_archs, wanted_archs
from torchsmith.resolve.build import (
    base_image,
    board_notes,
    build_env,
    build_requires,
    check_base,
    check_pip,
    cpu_flags,
    debian_build,
    deleted_base,
    has_cmake_wheels,
    needs_cmake,
    span_of,
    vendored_files,
)
from torchsmith.resolve.build_rules import find_system, place_of, source_of_python
from torchsmith.resolve.combination import Combination
from torchsmith.resolve.companions import (
    asked_companions,
    build_packages,
    decide_companions,
    decide_magma,
    decide_stack,
    extension_choices,
)
from torchsmith.resolve.cuda import (
    check_cuda_feature,
    check_cuda_wishes,
    consider_cuda,
    consider_driver,
    consider_wheel,
    cuda_choice,
    decide_cuda,
    decide_cudnn,
    feature_packages,
    settle_parts,
)
from torchsmith.resolve.features import FeatureDecisions, bundled_features, decide_features
from torchsmith.resolve.models import (
    Case,
    Change,
    CompilerChoice,
    Conflict,
    CPythonChoice,
    Evidence,
    Outcome,
    Resolution,
)
from torchsmith.resolve.naming import conda_build_string, version_label, wheel_name
from torchsmith.resolve.refusal import broken_rules, changed, refuse
from torchsmith.resolve.sources import (
    decide_installed,
    decide_patches,
    decide_source,
    find_installed,
    python_of,
)
from torchsmith.resolve.target import (
    Target,
    decide_python,
    decide_target,
    pythons_here,
    settle_system,
)
from torchsmith.resolve.toolchain import compiled, decide_compiler, own_base

# The published wheels by CUDA: https://download.pytorch.org/whl/cu126
WHEEL_INDEX = "https://download.pytorch.org/whl"


def resolve(
    variant: Variant, facts: Facts, host: Host, files: Mapping[str, bytes] | None = None
) -> Outcome:
    """Make every choice for a variant, or say every reason why it cannot exist."""
    attempt = _Attempt(variant, facts, host, files or {})
    if attempt.case.conflicts:
        return refuse(
            variant, facts, attempt.asked, attempt.case.conflicts, attempt.works_when_changed
        )
    return attempt.resolution()


class _Attempt:
    """One variant with its decisions, made in the order in which they depend on each other."""

    def __init__(
        self, variant: Variant, facts: Facts, host: Host, files: Mapping[str, bytes]
    ) -> None:
        self.variant, self.facts, self.host, self.files = variant, facts, host, files
        self.recipe: Recipe = variant.recipe
        self.case = Case(facts=facts, recipe=variant.recipe, host=host)
        self.release = self._decide_release()
        self.case.torch = torch = self.release.version
        self.target: Target = decide_target(self.case)
        self.cuda = decide_cuda(self.case, self.target)
        self.place = self._place()
        settle_system(self.case, self.cuda, variant.python, self.place, self.target)
        found = find_installed(self.recipe, variant.python, host)
        self.python, self.python_from = (
            (python_of(found), "system")
            if found is not None
            else decide_python(
                self.case, variant.python, self.recipe.build.python_source, self.target
            )
        )
        self.installed = decide_installed(
            self.case, found, python=variant.python, cuda=self.cuda, container=self.target.container
        )
        self.archs = ArchDecisions()
        if self.cuda and compiled(self.recipe):
            self.archs = decide_archs(self.case, self.target, self.cuda)
            self.case.include(self.archs)
        self.compiler = self._decide_compiler()
        self.cudnn = decide_cudnn(self.case, self.cuda, self.target)
        self.asked = self._combination()
        self._check(torch)
        check_cuda_wishes(self.case, self.cuda)
        self.features = self._decide_features()
        self.source = decide_source(self.case, self.release)

    def _place(self) -> Place:
        """What is known of this machine, for facts that depend on it."""
        host, platform = self.host, self.target.platform
        own = find_system(self.facts, host.system)
        glibc = host.libc.version if host.libc and host.libc.kind == "glibc" else ""
        return Place(
            platform,
            glibc or (own.glibc if own else ""),
            own.kernel if own else "",
            bundled_features(self.case, platform),
        )

    def works_when_changed(self, changes: tuple[Change, ...]) -> bool:
        """Whether the variant resolves once the recipe is changed like this."""
        recipe = changed(self.recipe, changes)
        again = _Attempt(Variant(self.variant.name, recipe), self.facts, self.host, self.files)
        return not again.case.conflicts

    def _decide_release(self) -> TorchRelease:
        asked = self.recipe.torch.release
        found = find_release(self.facts, asked)
        if found is not None:
            if found.version != asked:
                self.case.choose("torch", found.version, f"the newest release of {asked}")
            return found
        stand_in, conflict = _unknown_torch(self.facts, asked)
        self.case.conflicts.append(conflict)
        return stand_in

    @property
    def _known(self) -> bool:
        return find_release(self.facts, self.recipe.torch.release) is not None

    def _decide_compiler(self) -> CompilerChoice:
        cuda = self.cuda if self.cuda and find_toolkit(self.facts, self.cuda) else ""
        system = find_system(self.facts, self.target.system)
        place = self.place if self.recipe.torch.use == "source" else Place()
        return decide_compiler(self.case, cuda, system, place)

    def _combination(self) -> Combination:
        recipe, target = self.recipe, self.target
        board = target.board
        return Combination(
            torch=self.release.version,
            python=self.python,
            cuda=self.cuda,
            archs=tuple(map(str, self.archs.archs)) if self.archs.explicit or board else (),
            cudnn=(recipe.cuda.cudnn or "") if self.cudnn else "",
            compiler=(self.compiler.kind, self.compiler.version) if recipe.build.compiler else None,
            companions=asked_companions(self.case),
            unmatched=recipe.companions.unmatched,
            board=board.name if board else "",
            jetpack=target.jetpack.version if target.jetpack and recipe.jetpack else "",
            system=recipe.system or (target.system if not board else ""),
            here=self.host.system,
            toolkit=recipe.cuda.toolkit or "",
            platform=target.platform,
            place=self.place,
            pythons=((self.python,) if self.installed is not None else pythons_here(self.host)),
            published=recipe.torch.use == "wheel",
            gpus=tuple(
                wanted_archs(self.facts, self.host, recipe.gpus) or ([board.arch] if board else [])
            ),
            from_source=recipe.torch.use == "source",
            compiled=compiled(recipe),
            own_base=own_base(recipe),
        )

    def _cpython(self) -> CPythonChoice | None:
        if self.python_from != "source":
            return None
        known = self.recipe.build.python_source or source_of_python(self.facts, self.python)
        assert known is not None
        return CPythonChoice(str(known.url), known.sha256)

    def _check(self, torch: str) -> None:
        python = next((item for item in self.case.choices if item.subject == "Python"), None)
        origin = f"python = 'host' is Python {python.value}: {python.reason}" if python else ""
        for clash, conflict in broken_rules(self.facts, self.asked, self.archs.names, origin):
            # Of a release nobody knows, only what does not depend on it can be said.
            if self._known or "torch" not in clash.dimensions:
                self.case.conflicts.append(conflict)
        self._consider_release()
        self._consider_place(torch)
        consider_cuda(self.case, self.cuda, self.target)
        if self.cuda and self.asked.published:
            consider_wheel(self.case, self.asked)
        if self.cuda and not self.target.board:
            consider_driver(self.case, self.recipe.gpus)

    def _consider_release(self) -> None:
        """What upstream calls experimental, and what nobody has looked up."""
        known, sources = self.release, self.facts.releases.sources
        if self.python in known.experimental:
            self.case.caution(
                f"Python {self.python} is experimental with torch {known.version}: "
                "torch.compile and other libraries may not work",
                f"python = '{known.pythons[-1]}'"
                if known.pythons[-1] not in known.experimental
                else "python = '3.14'",
                "unknown",
                addresses(sources, known),
            )
        elif (dynamo := entry_for(self.facts.torch.compile, known.version)) and python_release(
            self.python
        ) not in version_range(dynamo.value):
            self.case.caution(
                f"torch.compile of torch {known.version} does not run on Python {self.python}, "
                f"only on {version_range(dynamo.value)}; the rest of it does",
                source=addresses(self.facts.torch.sources, dynamo),
            )
        if known.version not in self.facts.torch.looked_at:
            self.case.caution(
                f"what torch {known.version} needs has not been looked up: it is taken to be "
                "that of the release before",
                "see docs/new-release.md",
                "unknown",
            )

        platform = self.target.platform
        wheel = self.recipe.torch.use == "wheel"
        if wheel and not self._wheel_index() and not self.cuda and platform in known.pypi_cuda_on:
            self.case.caution(
                f"PyPI's torch {known.version} for {platform} has CUDA {known.pypi_cuda}, and "
                "brings gigabytes of its libraries; what is built against it runs on the CPU too",
                f"with PIP_EXTRA_INDEX_URL={WHEEL_INDEX}/cpu pip takes the one without",
                source=addresses(sources, known),
            )

    def _consider_place(self, torch: str) -> None:
        """What may go wrong in this place with this compiler, without being sure to."""
        if self.recipe.torch.use != "source":
            return
        place = place_of(self.facts, self.asked)
        compiler = self.compiler
        for item in troubles(self.facts, torch, self.cuda, compiler.kind, compiler.version, place):
            if item.standing == "unknown":
                self.case.caution(
                    f"torch {torch} with {compiler.kind} {compiler.version} on "
                    f"{place.platform}: {item.why}",
                    "another build.compiler"
                    + (f", or features.{item.feature} = 'off'" if item.feature else ""),
                    "unknown",
                    addresses(self.facts.torch.sources, item),
                )

    def _decide_features(self) -> FeatureDecisions:
        wishes: dict[str, Mode] = dict(self.recipe.features)
        if self.recipe.torch.use != "source" or "BLAS" in self.recipe.build.env:
            # Nothing is linked with it here; or the recipe has a BLAS of its own.
            wishes.setdefault("mkl", "off")
        check_cuda_feature(self.case, wishes, self.cuda)
        settle_parts(self.case, wishes, self.cuda, self.asked)
        made = decide_features(self.case, self.target, self.cuda, wishes)
        if not self._known:
            made.conflicts.clear()
        self.case.include(made)
        return made

    def resolution(self) -> Outcome:
        """Every choice that cannot fail any more, and the names that follow from them."""
        facts, recipe, target, case = self.facts, self.recipe, self.target, self.case
        torch = self.release.version
        chosen = cuda_choice(
            case,
            self.cuda,
            self.archs,
            self.cudnn,
            target,
            with_cudnn=self.features.modes.get("cudnn") not in (None, "off"),
        )
        companions = decide_companions(case, self.asked.companions, self.python)
        stack = decide_stack(case, self.asked, chosen)
        magma = decide_magma(case, chosen, self.source)
        check_base(case)
        check_pip(case)
        if case.conflicts:
            return refuse(self.variant, facts, self.asked, case.conflicts, self.works_when_changed)
        compiled = recipe.torch.use == "source"
        versions = {item.name: item.version for item in companions}
        if compiled:
            versions["torch"] = torch
        if magma is not None:
            versions["magma"] = magma.version
        patches = decide_patches(
            case,
            versions,
            self.cuda,
            self.compiler,
            self.source,
            place_of(facts, self.asked),
            self.features.modes,
            self.files,
        )
        foundation = deleted_base(case, target.platform)
        if target.board is not None:
            board_notes(case, target.board)
        version = self._version()
        frontend = entry_for(facts.torch.frontend, torch)
        system = find_system(facts, target.system)
        flags = cpu_flags(case, target)
        debian = debian_build(case, self.source) if compiled else None
        if not has_cmake_wheels(self.python):
            case.choose("CMake", "system", f"PyPI has no CMake wheels for Python {self.python}")
        return Resolution(
            variant=self.variant.name,
            torch=torch,
            use=recipe.torch.use,
            version=version,
            build_number=recipe.torch.build_number,
            python=self.python,
            python_from=self.python_from,
            cpython=self._cpython(),
            foundation=foundation,
            python_package=(
                f"python{self.python}" if system and self.python in system.pythons else "python3"
            ),
            platform=target.platform,
            board=target.board.name if target.board else "",
            jetpack=target.jetpack.version if target.jetpack else "",
            system=target.system,
            container=target.container,
            base_image=base_image(recipe, chosen, system.image if system else ""),
            cuda=chosen,
            cpu_flags=flags,
            profile=recipe.profile,
            features=tuple(self.features.modes.items()),
            feature_env=tuple(self.features.env.items()),
            expected_cache=tuple(sorted(self.features.cache.items())),
            env=tuple(build_env(case, target, chosen, version, debian, self.features.env).items()),
            cmake=tuple(recipe.build.cmake.items()),
            compiler=self.compiler,
            cmake_range=span_of(facts, "cmake", torch),
            requires=build_requires(
                facts,
                torch,
                self.python,
                [
                    *(frontend.requires if frontend else []),
                    *self.features.pip,
                    *build_packages(facts, stack),
                ],
                recipe.build.pip,
                cmake=needs_cmake(recipe),
            ),
            frontend=frontend.command if frontend else "setup.py",
            cmake_only=frontend.cmake_only if frontend else False,
            source=self.source,
            patches=patches,
            vendored=vendored_files(debian, self.cuda, self.features.modes),
            companions=companions,
            extensions=(*stack, *extension_choices(recipe)),
            stack=bool(recipe.stack),
            magma=magma,
            apt=tuple(
                dict.fromkeys(
                    [
                        *feature_packages(self.features, chosen),
                        *(chosen.apt if chosen else ()),
                        *(debian.apt if debian else ()),
                        *(
                            package
                            for item in facts.companions.project
                            if item.name in versions
                            for package in item.apt
                        ),
                        *recipe.build.apt,
                    ]
                )
            ),
            wheel=wheel_name("torch", version, self.python, target.platform),
            conda_build=conda_build_string(
                self.python, chosen.build if chosen else "", self.cudnn, recipe.torch.build_number
            ),
            wheel_index=self._wheel_index(),
            choices=tuple(case.choices),
            cautions=tuple(case.cautions),
            installed=self.installed,
            archive=system.archive if system else "",
        )

    def _wheel_index(self) -> str:
        """Where the published wheel of this CUDA lies; empty where PyPI's own is of it."""
        if self.recipe.torch.use != "wheel":
            return ""
        known, platform = self.release, self.target.platform
        pypi = self.python not in index_pythons(known, platform) and not known.index_folder
        own = not self.cuda or (known.pypi_cuda == self.cuda and platform in known.pypi_cuda_on)
        if pypi and own:
            return ""
        folder = f"cu{self.cuda.replace('.', '')}" if self.cuda else "cpu"
        return "/".join(filter(None, (WHEEL_INDEX, known.index_folder, folder)))

    def _version(self) -> str:
        recipe = self.recipe
        label = version_label(
            recipe.packages.label, self.cuda, self.archs.archs, explicit=self.archs.explicit
        )
        if self.installed is not None:
            return self.installed.version
        torch = self.release.version
        if recipe.torch.use == "wheel":
            # PyPI's carries no label; most others tell the CUDA.
            indexed = self.cuda if self._wheel_index() else ""
            entry = indexed and published_archs(self.facts, torch, indexed, self.target.platform)
            label = f"cu{indexed.replace('.', '')}" if entry and entry.labelled else ""
            if label and self.release.on_index:
                torch, label = self.release.on_index, ""
        return recipe.torch.version or (f"{torch}+{label}" if label else torch)


def _unknown_torch(facts: Facts, asked: str) -> tuple[TorchRelease, Conflict]:
    """The known release that stands nearest, and the conflict."""
    numbers = release(asked)
    every = releases(facts)
    below = [item for item in every if release(item.version) < numbers][-1:]
    above = [item for item in every if release(item.version) > numbers][:1]
    nearest = (below or above)[0]
    conflict = Conflict(
        "torch-unknown",
        f"there is no torch {asked} that we know of",
        Evidence(f"asked for: torch {asked}"),
        Evidence(
            f"releases known: {every[0].version} to {every[-1].version}",
            addresses(facts.releases.sources, every[-1]),
        ),
        " or ".join(f"torch {item.version}" for item in below + above),
        (Change("torch", nearest.version),),
        standing="unknown",
    )
    return nearest, conflict
