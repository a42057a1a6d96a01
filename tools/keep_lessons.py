"""Write what a build learned about batches into the facts, as the profile of a release.

    python tools/keep_lessons.py STORE/lessons/torch-2.6.jsonl torch-2.6

What the profile says already stays. The next build of that release, anyone's, has no clashes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torchsmith.toolchain.accel.lessons import Lessons, parse_profile, read_lessons

BATCHES = Path(__file__).parents[1] / "src/torchsmith/facts/data/batches"


def profile_text(lessons: Lessons) -> str:
    """A profile as its file: names sorted, so that a change of it can be read."""
    pairs = sorted(sorted(pair) for pair in lessons.apart)
    lines = [
        "# Files of PyTorch that cannot be compiled as one, as builds in batches found out.",
        "# Names are relative to the build folder. Written by tools/keep_lessons.py.",
        "",
        "alone = [",
        *(f'  "{name}",' for name in sorted(lessons.alone)),
        "]",
        "once = [",
        *(f'  "{name}",' for name in sorted(lessons.once)),
        "]",
        "apart = [",
        *(f'  ["{one}", "{other}"],' for one, other in pairs),
        "]",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Add a store's lessons to a profile."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lessons", type=Path)
    parser.add_argument("name", help="project and series, e.g. torch-2.6")
    given = parser.parse_args()
    learned = read_lessons(given.lessons)
    profile = BATCHES / f"{given.name}.toml"
    if profile.exists():
        learned |= parse_profile(profile.read_text(encoding="utf-8"))
    BATCHES.mkdir(exist_ok=True)
    profile.write_text(profile_text(learned), encoding="utf-8")
    counts = f"{len(learned.apart)} apart, {len(learned.alone)} alone, {len(learned.once)} once"
    print(f"{profile.name}: {counts}")


if __name__ == "__main__":
    main()
