"""The door of this room: one variant in, a resolution or every conflict out."""

from __future__ import annotations

from collections.abc import Mapping

from torchsmith.facts.cuda import find_toolkit
from torchsmith.facts.files import Facts, addresses
from torchsmith.facts.models import Mode, TorchRelease
from torchsmith.facts.ranges import release
from torchsmith.facts.torch import entry_for, find_release, published_archs, releases
from torchsmith.host.models import Host
from torchsmith.recipe.matrix import Variant
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.archs import ArchDecisions, decide_archs
from torchsmith.resolve.build import (
    base_image,
    board_notes,
    build_env,
    build_requires,
    cpu_flags,
    debian_build,
    has_cmake_wheels,
    needs_cmake,
    span_of,
    vendored_files,
)
from torchsmith.resolve.build_rules import find_system
from torchsmith.resolve.changes import changed
from torchsmith.resolve.combination import Combination
from torchsmith.resolve.companions import (
    asked_companions,
    decide_companions,
    decide_magma,
    extension_choices,
)
from torchsmith.resolve.cuda import (
    check_cuda_feature,
    check_cuda_wishes,
    compiled,
    cuda_choice,
    decide_cuda,
    decide_cudnn,
)
from torchsmith.resolve.features import FeatureDecisions, decide_features
from torchsmith.resolve.installed import decide_installed, find_installed, python_of
from torchsmith.resolve.models import (
    Caution,
    Change,
    Choice,
    CompilerChoice,
    Conflict,
    Evidence,
    Outcome,
    Resolution,
)
from torchsmith.resolve.naming import conda_build_string, version_label, wheel_name
from torchsmith.resolve.refusal import broken_rules, refuse
from torchsmith.resolve.sources import decide_patches, decide_source
from torchsmith.resolve.target import Target, decide_python, decide_target, settle_system
from torchsmith.resolve.toolchain import Decided, decide_compiler


def resolve(
    variant: Variant, facts: Facts, host: Host, files: Mapping[str, bytes] | None = None
) -> Outcome:
    """Make every choice for a variant, or say every reason why it cannot exist."""
    attempt = _Attempt(variant, facts, host, files or {})
    if attempt.decided.conflicts:
        return refuse(
            variant, facts, attempt.asked, attempt.decided.conflicts, attempt.works_when_changed
        )
    return attempt.resolution()


class _Attempt:
    """One variant with its decisions, made in the order in which they depend on each other."""

    def __init__(
        self, variant: Variant, facts: Facts, host: Host, files: Mapping[str, bytes]
    ) -> None:
        self.variant, self.facts, self.host, self.files = variant, facts, host, files
        self.recipe: Recipe = variant.recipe
        self.decided = Decided()
        self.release = self._decide_release()
        torch = self.release.version
        self.target: Target = decide_target(facts, self.recipe, torch, host, self.decided)
        self.cuda = decide_cuda(facts, self.recipe, torch, self.target, host, self.decided)
        settle_system(facts, self.recipe, torch, self.cuda, self.target, self.decided)
        found = find_installed(self.recipe, variant.python, host)
        self.python, self.python_from = (
            (python_of(found), "system")
            if found is not None
            else decide_python(facts, variant.python, self.target, host, self.decided)
        )
        self.installed = decide_installed(
            self.recipe,
            found,
            torch=torch,
            python=variant.python,
            cuda=self.cuda,
            container=self.target.container,
            decided=self.decided,
        )
        self.archs = self._decide_archs()
        self.compiler = self._decide_compiler()
        self.cudnn = decide_cudnn(self.recipe, self.cuda, self.target, self.decided)
        self.asked = self._combination()
        self._check(torch)
        check_cuda_wishes(facts, self.recipe, torch, self.cuda, self.decided)
        self.features = self._decide_features()
        self.source = decide_source(facts, self.recipe, self.release, self.decided)

    def works_when_changed(self, changes: tuple[Change, ...]) -> bool:
        """Whether the variant resolves once the recipe is changed like this."""
        recipe = changed(self.recipe, changes)
        again = _Attempt(Variant(self.variant.name, recipe), self.facts, self.host, self.files)
        return not again.decided.conflicts

    def _decide_release(self) -> TorchRelease:
        asked = self.recipe.torch.release
        found = find_release(self.facts, asked)
        if found is not None:
            if found.version != asked:
                self.decided.choices.append(
                    Choice("torch", found.version, f"the newest release of {asked}")
                )
            return found
        stand_in, conflict = _unknown_torch(self.facts, asked)
        self.decided.conflicts.append(conflict)
        return stand_in

    @property
    def _known(self) -> bool:
        return find_release(self.facts, self.recipe.torch.release) is not None

    def _decide_archs(self) -> ArchDecisions:
        made = ArchDecisions()
        if self.cuda and compiled(self.recipe):
            made = decide_archs(
                self.facts,
                torch=self.release.version,
                cuda=self.cuda,
                platform=self.target.platform,
                board=self.target.board,
                gpus=self.recipe.gpus,
                host=self.host,
                compressed="-compress-all" in " ".join(self.recipe.cuda.nvcc_flags),
            )
        self.decided.choices += made.choices
        self.decided.cautions += made.cautions
        self.decided.conflicts += made.conflicts
        return made

    def _decide_compiler(self) -> CompilerChoice:
        return decide_compiler(
            self.facts,
            needed=compiled(self.recipe),
            torch=self.release.version,
            cuda=self.cuda if self.cuda and find_toolkit(self.facts, self.cuda) else "",
            asked=self.recipe.build.compiler,
            system=find_system(self.facts, self.target.system),
            host=self.host,
            decided=self.decided,
        )

    def _combination(self) -> Combination:
        recipe, target = self.recipe, self.target
        image = recipe.image
        board = target.board
        return Combination(
            torch=self.release.version,
            python=self.python,
            cuda=self.cuda,
            archs=tuple(map(str, self.archs.archs)) if self.archs.explicit else (),
            cudnn=(recipe.cuda.cudnn or "") if self.cudnn else "",
            compiler=(self.compiler.kind, self.compiler.version) if recipe.build.compiler else None,
            companions=asked_companions(self.facts, recipe, self.release.version),
            unmatched=recipe.companions.unmatched,
            board=board.name if board else "",
            jetpack=target.jetpack.version if target.jetpack and recipe.jetpack else "",
            system=recipe.system or (target.system if not board else ""),
            toolkit=recipe.cuda.toolkit or "",
            platform=target.platform,
            from_source=recipe.torch.use == "source",
            compiled=compiled(recipe),
            own_base=image is not None and bool(image.base or image.foundation),
        )

    def _check(self, torch: str) -> None:
        python = next((item for item in self.decided.choices if item.subject == "Python"), None)
        origin = f"python = 'host' is Python {python.value}: {python.reason}" if python else ""
        for clash, conflict in broken_rules(self.facts, self.asked, self.archs.names, origin):
            # Of a release nobody knows, only what does not depend on it can be said.
            if self._known or "torch" not in clash.dimensions:
                self.decided.conflicts.append(conflict)
        published = published_archs(self.facts, torch, self.cuda or "0", self.target.platform)
        if self.recipe.torch.use == "wheel" and self.cuda and published is None:
            self.decided.cautions.append(
                Caution(
                    f"no published wheel of torch {torch} with CUDA {self.cuda} for "
                    f"{self.target.platform} is known: pip may find none",
                    "a CUDA from `torchsmith facts torch`, or torch.use = 'source'",
                )
            )
        if self.recipe.torch.use == "wheel" and not self.cuda and compiled(self.recipe):
            self._check_published_without_cuda(torch)

    def _check_published_without_cuda(self, torch: str) -> None:
        """Say that PyPI has no wheel without CUDA for x86-64; what is built against it needs none.

        https://pypi.org/project/torch/2.6.0/#files: its requirements name CUDA for x86_64 alone.
        """
        if self.target.platform == "linux-x86_64" and release(torch) >= (1, 0):
            self.decided.cautions.append(
                Caution(
                    f"PyPI's torch {torch} for x86-64 brings CUDA's libraries along, gigabytes of "
                    "them; what is built against it runs on the CPU all the same",
                    "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu has PyTorch's own "
                    "wheels without CUDA",
                )
            )

    def _decide_features(self) -> FeatureDecisions:
        wishes: dict[str, Mode] = dict(self.recipe.features)
        check_cuda_feature(self.facts, wishes, self.cuda, self.decided)
        made = decide_features(
            self.facts,
            torch=self.release.version,
            platform=self.target.platform,
            board=self.target.board,
            cuda=self.cuda,
            profile=self.recipe.profile,
            asked={**wishes, "cuda": "on" if self.cuda else "off"},
        )
        self.decided.choices += made.choices
        self.decided.cautions += made.cautions
        if self._known:
            self.decided.conflicts += made.conflicts
        return made

    def resolution(self) -> Outcome:
        """Every choice that cannot fail any more, and the names that follow from them."""
        facts, recipe, target, decided = self.facts, self.recipe, self.target, self.decided
        torch = self.release.version
        chosen = cuda_choice(
            facts, recipe, torch, self.cuda, self.archs, self.cudnn, target, self.host, decided
        )
        companions = decide_companions(facts, recipe, self.asked.companions, torch, decided)
        magma = decide_magma(facts, recipe, chosen, self.source, decided)
        if decided.conflicts:
            return refuse(
                self.variant, facts, self.asked, decided.conflicts, self.works_when_changed
            )
        versions = {"torch": torch, **{item.name: item.version for item in companions}}
        if magma is not None:
            versions["magma"] = magma.version
        patches = decide_patches(
            facts, recipe, versions, self.cuda, self.compiler, self.source, self.files, decided
        )
        if target.board is not None:
            board_notes(target.board, decided)
        version = self._version()
        frontend = entry_for(facts.torch.frontend, torch)
        system = find_system(facts, target.system)
        flags = cpu_flags(recipe, target, decided)
        debian = debian_build(facts, torch, self.source, decided)
        if not has_cmake_wheels(self.python):
            decided.choices.append(
                Choice("CMake", "system", f"PyPI has no CMake wheels for Python {self.python}")
            )
        return Resolution(
            variant=self.variant.name,
            torch=torch,
            use=recipe.torch.use,
            version=version,
            build_number=recipe.torch.build_number,
            python=self.python,
            python_from=self.python_from,
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
            env=tuple(build_env(recipe, target, chosen, version, debian).items()),
            cmake=tuple(recipe.build.cmake.items()),
            compiler=self.compiler,
            cmake_range=span_of(facts, "cmake", torch),
            requires=build_requires(
                facts,
                torch,
                self.python,
                [*(frontend.requires if frontend else []), *recipe.build.pip],
                cmake=needs_cmake(recipe),
            ),
            frontend=frontend.command if frontend else "setup.py",
            cmake_only=frontend.cmake_only if frontend else False,
            source=self.source,
            patches=patches,
            vendored=vendored_files(debian, self.cuda),
            companions=companions,
            extensions=extension_choices(recipe),
            magma=magma,
            apt=tuple(
                dict.fromkeys(
                    [*self.features.apt, *(debian.apt if debian else ()), *recipe.build.apt]
                )
            ),
            wheel=wheel_name("torch", version, self.python, target.platform),
            conda_build=conda_build_string(
                self.python, chosen.build if chosen else "", self.cudnn, recipe.torch.build_number
            ),
            choices=tuple(decided.choices),
            cautions=tuple(decided.cautions),
            installed=self.installed,
        )

    def _version(self) -> str:
        recipe = self.recipe
        label = version_label(
            recipe.packages.label, self.cuda, self.archs.archs, explicit=self.archs.explicit
        )
        if self.installed is not None:
            return self.installed.version
        if recipe.torch.use == "wheel":
            label = ""
        torch = self.release.version
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
    )
    return nearest, conflict
