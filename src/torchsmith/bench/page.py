"""A comparison as a page anyone can open: one file, no script, nothing fetched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from statistics import median

from torchsmith.bench.chart import (
    COLOURS,
    DRAWN,
    VIEWPORT,
    WIDE,
    WORDS,
    Row,
    forest,
    table,
    times,
    wide,
)
from torchsmith.bench.measure import GROUPS
from torchsmith.bench.reasons import traits
from torchsmith.bench.result import Compared, Contender, Result

_DEVICES = {"cpu": "CPU", "cuda": "GPU"}
_STYLE = f"""{COLOURS}
body {{ font: 15px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
 margin: 2rem auto; max-width: 1020px; padding: 0 1rem; }}
h1 {{ margin-bottom: 0; }} h2 {{ margin: 2.2rem 0 .6rem; }} h3 {{ margin: 1.4rem 0 .2rem; }}
.lead {{ color: var(--faint); margin-top: .2rem; }} svg {{ width: 100%; height: auto; }}
table {{ border-collapse: collapse; font-size: 14px; }}
td, th {{ padding: .15rem .7rem; text-align: right; border-bottom: 1px solid var(--line); }}
td:first-child, th:first-child {{ text-align: left; }} .left td {{ text-align: left; }}
.left th {{ text-align: left; }} pre {{ white-space: pre-wrap; font-size: 12px; }}
.cards {{ display: flex; flex-wrap: wrap; gap: .8rem; }}
.card {{ background: var(--card); border-radius: .6rem; padding: .6rem 1.1rem; }}
.card b {{ display: block; font-size: 1.5rem; }}
.note {{ background: var(--card); border-left: 4px solid var(--unclear); padding: .5rem 1rem; }}
.faster {{ color: var(--faster); }} .slower {{ color: var(--slower); }}
.same {{ color: var(--same); }} .unclear {{ color: var(--unclear); }}
details {{ margin: .4rem 0; }} summary {{ cursor: pointer; }}
{DRAWN}"""


def seconds(value: float) -> str:
    """A time in the unit that gives it three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def page(result: Result) -> str:
    """The whole page."""
    first, others = result.sides[0], result.sides[1:]
    title = f"{first.name} against {', '.join(side.name for side in others)}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">torch {escape(first.facts.torch)} against '
        f"{escape(', '.join(side.facts.torch for side in others))}; {escape(result.machine.cpu)}, "
        f"{result.method.width}"
        f"{'; ' + escape(first.facts.gpu) if first.facts.gpu else ''}; {escape(result.made)}</p>",
    ]
    if result.stopped:
        body.append(
            f'<p class="note">Not whole: {escape(result.stopped)} after {result.seconds:.0f} s. '
            "Cases that were not reached are missing, others have fewer rounds.</p>"
        )
    for other in others:
        body += _against(result, first, other)
    body += [_noise(result), _sides(result), _method(result)]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"{VIEWPORT}<title>{escape(title)}</title><style>{_STYLE}{WIDE}</style></head><body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def group_picture(result: Result, against: str, *, alone: bool = True) -> str:
    """The speed-up of each group, as one drawing; empty if there is none."""
    rows = [
        Row(_group_name(item, result), item) for item in result.groups if item.against == against
    ]
    return forest(rows, result.sides[0].name, against, alone=alone) if rows else ""


def _group_name(item: Compared, result: Result) -> str:
    several = len({group.device for group in result.groups}) > 1
    return f"{item.group} ({_DEVICES[item.device]})" if several else item.group


def _against(result: Result, first: Contender, other: Contender) -> Iterable[str]:
    compared = [item for item in result.compared if item.against == other.name]
    if len(result.sides) > 2:
        yield f"<h2>Against {escape(other.name)}</h2>"
    if not compared:
        yield '<p class="note">No case was measured on both sides.</p>'
        return
    counts = Counter(item.verdict for item in compared)
    cards = "".join(
        f'<div class="card"><b class="{verdict}">{counts[verdict]}</b>{word}</div>'
        for verdict, word in WORDS.items()
    )
    yield f'<div class="cards">{cards}</div>'
    yield "<h2>Speed-up by group</h2>"
    yield (
        f"<p>How many times as quick {escape(first.name)} is: the geometric mean of a group's "
        "cases, with its 95 % interval. Right of 1 it is quicker, left of 1 slower.</p>"
    )
    yield wide(group_picture(result, other.name, alone=False))
    yield _losses(result, other.name)
    yield "<h2>Every case</h2><p>A dot is a round, the line the interval of the middle.</p>"
    yield from _cases(result, first.name, other.name, compared)
    yield _absent(result)


def _losses(result: Result, against: str) -> str:
    found = [item for item in result.reasons if item.against == against]
    if not found:
        return "<h2>Where yours loses</h2><p>In no group.</p>"
    items = "".join(
        f"<h3>{escape(item.group)} on the {_DEVICES[item.device]}: "
        f'<span class="slower">{times(item.speedup)}</span></h3><ul>'
        + "".join(f"<li>{escape(text)}</li>" for text in item.because)
        + "</ul>"
        for item in found
    )
    return f"<h2>Where yours loses, and why</h2>{items}"


def _cases(result: Result, first: str, other: str, compared: Sequence[Compared]) -> Iterable[str]:
    measured = {(case.device, case.name): case for case in result.cases}
    for device, group in dict.fromkeys((item.device, item.group) for item in compared):
        rows, lines = [], []
        for item in compared:
            if (item.device, item.group) != (device, group):
                continue
            case = measured[device, item.case]
            mine, its = case.times[first], case.times[other]
            ratios = tuple(b / a for a, b in zip(mine, its, strict=False))
            rows.append(Row(item.case, item, ratios))
            lines.append(
                (
                    item.case,
                    seconds(median(mine)),
                    seconds(median(its)),
                    times(item.speedup),
                    f"{times(item.low)} – {times(item.high)}",
                    f"{item.chance:.3g}",
                    WORDS[item.verdict],
                )
            )
        head = ("case", first, other, "speed-up", "interval", "p, corrected", "")
        yield (
            f"<h3>{escape(group)} on the {_DEVICES[device]}: {escape(GROUPS.get(group, ''))}</h3>"
            f"{wide(forest(rows, first, other))}"
            f"<details><summary>numbers</summary>{table(head, lines)}</details>"
        )


def _absent(result: Result) -> str:
    lines = [
        (case.name, name, kind, text)
        for case in result.cases
        for kind, table in (("missing", case.missing), ("failed", case.failed))
        for name, text in table.items()
    ]
    if not lines:
        return ""
    return (
        "<h2>Not measured</h2>"
        f'<div class="left">{table(("case", "side", "", "because"), lines)}</div>'
    )


def _noise(result: Result) -> str:
    if not result.noise:
        return "<h2>Noise</h2><p>Not measured: there was no control.</p>"
    items = "".join(
        f"<li>{_DEVICES[item.device]}: two copies of the first side differed by "
        f"{item.middle:.1%} in the middle case; 95 % of the {item.cases} cases by no more than "
        f"{item.floor:.1%}. Without that floor, {item.called} would have been called a "
        "difference.</li>"
        for item in result.noise
    )
    load = result.machine.load
    return (
        f"<h2>Noise</h2><ul>{items}</ul><p>Processes that wanted one of {result.machine.cores} "
        f"cores: {load[0]:g} before, {load[1]:g} after. A number well above the threads used, "
        "before it began, means that others were at work too.</p>"
    )


def _sides(result: Result) -> str:
    known = [traits(side) for side in result.sides]
    names = [name for name in known[0] if any(trait[name] for trait in known)]
    lines = [(name, *(trait[name] for trait in known)) for name in names]
    head = ("", *(side.name for side in result.sides))
    texts = "".join(
        f"<details><summary>{escape(side.name)}: {escape(side.shown)}</summary>"
        f"<pre>{escape(side.facts.config)}\n{escape(side.facts.parallel)}</pre></details>"
        for side in result.sides
    )
    return f'<h2>The sides</h2><div class="left">{table(head, lines)}</div>{texts}'


def _method(result: Result) -> str:
    how = result.method
    return (
        "<h2>How it was measured</h2><p>"
        f"Suite {escape(how.suite)}, {how.rounds} rounds in {how.lives} lives of the workers, "
        f"blocks of {how.block * 1000:g} ms, processors {escape(', '.join(map(str, how.cpus)))}, "
        f"seed {how.seed}. In each round every side is timed once, in an order by chance and then "
        "backwards; while one is timed the others are stopped. The speed-up is the middle "
        "(Hodges and Lehmann) of the rounds' ratios, its interval that of Wilcoxon's "
        "signed-rank test, p that of Yuen's test of a trimmed mean, "
        f"corrected for all cases together ({how.alpha:.0%} false "
        "discoveries, Benjamini and Hochberg). A difference is called one if the interval "
        "excludes 1, the corrected p is small enough, it is larger than the noise floor, and it "
        "is there against both copies of the first side and in every life of the workers. "
        f"torchsmith {escape(result.torchsmith)}, {result.seconds:.0f} s.</p>"
    )
