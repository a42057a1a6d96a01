"""Which GPU a person means by a name.

A wrong answer here is a build for the wrong card, found out hours later; so a name either
says one card or says nothing. What may be left out of a name, or put around it, is decided
in this file; every other spelling is an alias in ``gpus.toml``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache

from torchsmith.facts.files import Facts
from torchsmith.facts.models import Gpu, OtherCards

# A brand is optional, but not interchangeable: "Quadro T4" is no card, although "T4" is.
_BRANDS = {
    "geforce": "geforce",
    "jetson": "jetson",
    "quadro": "workstation",
    "tesla": "datacentre",
}
# Words around a name that tell no two cards apart.
_AROUND = re.compile(
    r"nvidia|corporation|gpu|graphics|card|superchip|generation|developer|devkit|kit|module|mig"
    r"|pcie?|fhhl|[dh]gx|dgxs|mega|sxm\d*|nvl\d*|hbm\d+e?|gddr\d+x?|embedded|\d+(?:g|gb|gib)"
)
# What card makers put around NVIDIA's name. "Super", "Ti" and "Ada" are NVIDIA's own words.
_MAKERS = re.compile(
    r"asus|asustek|rog|strix|tuf|gaming|dual|proart|turbo|phoenix|noctua|msi|trio|ventus|suprim"
    r"|gigabyte|aorus|eagle|windforce|aero|vision|evga|ftw\d?|xc\d?|hybrid|kingpin|zotac|trinity"
    r"|amp|holo|solo|twin|edge|palit|gamerock|gamingpro|jetstream|stormx|gainward|phantom"
    r"|ghost|panther|pny|verto|xlr8|uprising|inno3d|ichill|galax|kfa2|sg|ex|colorful|igame"
    r"|battle|ax|leadtek|winfast|manli|maxsun|founders|edition|fe|oc|oc\d|x\d?|black|white|lhr"
    r"|matrix|master|extreme|elite|slim|advanced|limited|ltd|prime|shadow|expert|mini|itx|silent|[23]x"
    r"|lite|hash|rate"
)
# A share of a card, as a virtual machine sees it: "GRID A100D-80C", "NVIDIA A40-1-6Q". The letters
# after the card's name are its form and memory.
_SHARE = re.compile(
    r"(?:grid |nvidia ){0,4}(?P<card>[a-z0-9 ]{0,60}?\d{1,9}(?:-ada| blackwell)?)(?: dc)?[a-z]{0,2}"
    r"(?:-\d)?-\d{1,3}[abcq](?:me)?"
)
_PORTABLE = re.compile(r"refresh|laptop|notebook|mobile|maxq|max|q|with|design")
# From Pascal on a portable card has the architecture of the one it is named after.
_SAME_NAME_SAME_CHIP = (6, 0)
# lspci names the chip, and the card in brackets: "GA104M [GeForce RTX 3070 Mobile / Max-Q]".
_IN_BRACKETS = re.compile(r"\[([^\[\]]{2,60})\]")
_WORD = re.compile(r"[a-z0-9]+")
# Gigabyte writes it behind its names.
_REVISION = re.compile(r"\(rev\.? ?[\d.]{1,9}\)", re.IGNORECASE)
# Alone, these are AMD's names too: there is a GeForce 840M and a Radeon 840M.
_BARE_NUMBER = re.compile(r"\d{3}[a-z]*")
# No card's name is longer; a pasted log line is no reason to compare for seconds.
_LONGEST = 120


@dataclass(frozen=True, slots=True)
class _Index:
    """The cards by the words that tell them apart, with their brand and without."""

    branded: dict[str, Gpu]
    plain: dict[str, tuple[Gpu, ...]]
    ambiguous: dict[str, tuple[str, ...]]


def _words(name: str) -> list[str]:
    """The words of a name that tell cards apart; ``24 GB`` is one thing in two words."""
    kept: list[str] = []
    for word in _WORD.findall(name[:_LONGEST].lower()):
        if word in ("gb", "gib") and kept and kept[-1].isdecimal():
            kept.pop()
        elif not _AROUND.fullmatch(word):
            kept.append(word)
    return kept


def _plain(words: list[str]) -> str:
    return "".join(word for word in words if word not in _BRANDS)


@cache
def _index(facts: Facts) -> _Index:
    branded: dict[str, Gpu] = {}
    plain: dict[str, list[Gpu]] = {}
    for gpu in facts.gpus.gpu:
        for name in (gpu.name, *gpu.aliases):
            words = _words(name)
            branded.setdefault("".join(words), gpu)
            cards = plain.setdefault(_plain(words), [])
            if gpu not in cards:
                cards.append(gpu)
    return _Index(
        branded=branded,
        plain={key: tuple(cards) for key, cards in plain.items()},
        ambiguous={_plain(_words(name.name)): tuple(name.between) for name in facts.gpus.ambiguous},
    )


def find_gpu(facts: Facts, name: str) -> Gpu | None:
    """Return the GPU a name says, or None if it says none or more than one."""
    name = _REVISION.sub("", name[:_LONGEST])
    inside = _IN_BRACKETS.findall(name)
    found = (_find_named(facts, text) for text in (name, *inside))
    return next((gpu for gpu in found if gpu is not None), None)


def _find_named(facts: Facts, name: str) -> Gpu | None:
    words = _words(name)
    if (gpu := _find(facts, name, words)) is not None:
        return gpu
    if share := _SHARE.fullmatch(name[:_LONGEST].lower().strip()):
        return _find(facts, name, _words(share["card"]))
    # A card's own words may be a maker's too: what is found without them is only the second try.
    portable = [word for word in words if not _PORTABLE.fullmatch(word)]
    bare = [word for word in portable if not _MAKERS.fullmatch(word)]
    for fewer in (portable, bare):
        if fewer != words and (gpu := _find(facts, name, fewer)) is not None:
            numbers = tuple(int(part) for part in gpu.arch.rstrip("af").split("."))
            if len(portable) == len(words) or numbers >= _SAME_NAME_SAME_CHIP:
                return gpu
    return None


def other_cards(facts: Facts, name: str) -> OtherCards | None:
    """Whose card a name says, where it is none that anything is built for here."""
    text = " ".join(re.findall(r"[a-z0-9+]+", name[:_LONGEST].lower()))
    text = re.sub(r" ?\b(gpu|graphics|card|\d+ ?gb)\b", "", text).strip() or text
    return next((item for item in facts.gpus.other if re.search(item.pattern, text)), None)


def _find(facts: Facts, name: str, words: list[str]) -> Gpu | None:
    index = _index(facts)
    if (gpu := index.branded.get("".join(words))) is not None:
        return gpu
    key = _plain(words)
    kinds = {_BRANDS[word] for word in words if word in _BRANDS}
    if key in index.ambiguous:
        return None
    if _BARE_NUMBER.fullmatch(key) and not kinds and "nvidia" not in name.lower():
        return None
    fitting = [gpu for gpu in index.plain.get(key, ()) if kinds <= {gpu.kind}]
    return fitting[0] if len(fitting) == 1 else None


def nearest_gpus(facts: Facts, name: str, count: int = 3) -> list[str]:
    """Return names a person may have meant, the likeliest first."""
    index = _index(facts)
    words = _words(name)
    wanted = _plain(words)
    if not wanted:
        return []
    kinds = {_BRANDS[word] for word in words if word in _BRANDS}
    scores: dict[str, float] = {}
    for key, cards in index.plain.items():
        # Part of a longer name is a better guess than one wrong digit.
        likeness = SequenceMatcher(None, wanted, key).ratio() + 0.3 * (wanted in key)
        if likeness < 0.6:
            continue
        for gpu in cards:
            score = likeness + 0.4 * (gpu.kind in kinds)
            scores[gpu.name] = max(score, scores.get(gpu.name, 0.0))
    likely = sorted(scores, key=lambda gpu: -scores[gpu])
    found = list(index.ambiguous.get(wanted, ()))
    found += [gpu for gpu in likely if gpu not in found]
    return found[:count]
