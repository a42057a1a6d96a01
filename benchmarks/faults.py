"""Strike builds and publishers in every way we know, and see that nothing is lost.

    python -m benchmarks.faults                 # a few minutes
    python -m benchmarks.faults --size hour     # by hand, as root

A small real project is built by `torchsmith build` while it is struck: killed at every kind of
step and at single writes, its compilers killed, its disk filled, made read-only or taken away, its
clock moved, its memory and its network cut, its lock holders stopped, eight at once. What is
struck is started again by the same command, which may be struck as well; the last of a chain must
end well, and its results must be those of an undisturbed build, byte for byte.

Counted are: results that were lost or differ, files that can be seen and are not whole, processes
and mounts left behind, tracebacks. Any of them is a failure. The seed decides what is struck; at
which microsecond a signal arrives, the machine decides.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.fault_project import (
    WHOLE_WORDS,
    CampaignError,
    Ended,
    Project,
    read_events,
)
from benchmarks.kill_and_resume import kill_all

from torchsmith.toolchain.processes import process_tree

COMPILERS = ("cc1plus", "g++", "as", "ld", "collect2")
AT_ONCE = 8
DAY_S = 86_400
KINDS = ("fetch", "environment", "compile", "verify", "package", "publish")
# Kinds that come after the environment, which is what takes longest.
LATER = KINDS[2:]
# Kinds that only torch itself has.
WHOLE_KINDS = ("patch", "configure", "compile")
COUNTS = ("lost", "half", "left", "tracebacks")
# What may leave enough of what a build needs: one that ends well was not struck.
LIMITS = (
    "full disk",
    "no inodes",
    "read-only disk",
    "out of memory",
    "no network",
    "server hangs up",
)


@dataclass
class Strike:
    """One fault, and what was found wrong after it; unless `struck`, only others were."""

    name: str
    status: int | None = None
    struck: bool = True
    lost: list[str] = field(default_factory=list)
    half: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)

    @property
    def bad(self) -> int:
        """How much is wrong."""
        return sum(len(getattr(self, name)) for name in COUNTS)


Aimed = tuple[str, Callable[[], Ended | None]]
Act = Callable[[subprocess.Popen[bytes]], object]


class Campaign:
    """Strikes in chains, each from a state of the project that was kept."""

    def __init__(self, project: Project, seed: int, say: Callable[[str], None] = print) -> None:
        self.project = project
        self.chance = random.Random(seed)
        self.say = say
        self.strikes: list[Strike] = []
        self.seconds: dict[str, float] = {}
        # By the words of the command.
        self.undisturbed: dict[tuple[str, ...], dict[str, str]] = {}
        self.words: tuple[str, ...] = ()
        self.shelf: dict[str, str] = {}

    # The states that chains begin from.

    def prepare(self) -> None:
        """Have the project."""
        self.project.make()
        self.project.save("new")

    def _undisturbed(self, words: tuple[str, ...]) -> dict[str, str]:
        """The results of a build in peace, once; what comes after its environment is kept."""
        if words not in self.undisturbed:
            name, fetch = ("whole", "torch-v2.5.1") if words else ("small", "extension-small")
            self.project.load("new")
            early = ("--step", f"environment-{name}", "--step", f"fetch-{fetch}")
            self._in_peace(*words[:1], *early)
            self.project.save(name)
            self._in_peace(*words)
            self.undisturbed[words] = self.project.results()
        return self.undisturbed[words]

    def _in_peace(self, *words: str) -> None:
        done = self.project.ended(*self.project.build(*words))
        if done.status != 0:
            raise CampaignError(f"the undisturbed build failed: {done.stderr[-2000:]}")
        for event in done.events:
            if event.get("event") == "step-finished":
                self.seconds[_kind(done, str(event["step"]))] = float(str(event["seconds"]))

    def build(
        self, before: tuple[str, ...] = (), env: Mapping[str, str] | None = None
    ) -> tuple[subprocess.Popen[bytes], Path]:
        """Start the build that is struck."""
        return self.project.build(*self.words, before=before, env=env or {})

    # Ways to strike; each returns how the struck command ended, None if it was too late.

    def at_step(self, kind: str, act: Act) -> Ended | None:
        """Strike at a random moment of a step of this kind."""
        process, log = self.build()
        while not any(
            event.get("event") == "step-started" and event.get("kind") == kind
            for event in read_events(log)
        ):
            if process.poll() is not None:
                return None
            time.sleep(0.02)
        time.sleep(self.chance.uniform(0, 0.9) * min(self.seconds.get(kind, 1.0), 8.0))
        if process.poll() is not None or act(process) is False:
            self.project.ended(process, log)
            return None
        return self.project.ended(process, log)

    def from_within(
        self, word: str, act: str, latest: int, program: str = "torchsmith build", *words: str
    ) -> Ended | None:
        """Strike at a random call on a file whose name holds a word."""
        project = self.project
        project.mark.unlink(missing_ok=True)
        strikes = {
            "LD_PRELOAD": str(project.preload),
            "FAULT_PROGRAM": program,
            "FAULT_PATH": word,
            "FAULT_AT": str(self.chance.randint(1, latest)),
            "FAULT_DO": act,
            "FAULT_MARK": str(project.mark),
        }
        started = project.start(*words, env=strikes) if words else self.build(env=strikes)
        done = project.ended(*started)
        return done if project.mark.exists() else None

    def memory(self) -> Ended:
        """Build with less memory than it takes."""
        limit = self.chance.randint(60, 700) << 20
        return self.project.ended(*self.build(before=("prlimit", f"--as={limit}")))

    def full(self) -> Ended:
        """Build on a disk with hardly any room."""
        room = self.project.used()[0] + self.chance.choice([4096, 65_536, 1 << 20, 4 << 20])
        return self._on_disk(f"size={room}", "size=2g")

    def no_inodes(self) -> Ended:
        """Build on a disk that takes few more files."""
        few = self.project.used()[1] + self.chance.randint(1, 300)
        return self._on_disk(f"nr_inodes={few}", "nr_inodes=1000000")

    def read_only(self) -> Ended:
        """Build on a disk that cannot be written to."""
        return self._on_disk("ro", "rw")

    def _on_disk(self, bad: str, good: str) -> Ended:
        self.project.remount(bad)
        try:
            return self.project.ended(*self.build())
        finally:
            self.project.left_running()
            self.project.remount(good)

    def away(self, kind: str) -> Ended | None:
        """Take the disk away in the middle of a step."""
        try:
            return self.at_step(kind, lambda _: self.project.vanish())
        finally:
            self.project.left_running()
            if f" {self.project.disk} " not in Path("/proc/self/mounts").read_text():
                self.project.appear()

    def server_hangs_up(self) -> Ended:
        """Build while the package server breaks off each answer."""
        self.project.server.hang_up = True
        try:
            return self.project.ended(*self.build())
        finally:
            self.project.server.hang_up = False

    def no_network(self) -> Ended:
        """Build without any network."""
        return self.project.ended(*self.build(before=("unshare", "--net")))

    def holder_stops(self, kind: str) -> Ended | None:
        """Stop a build with SIGSTOP, start another, and let the first go on."""
        second: list[tuple[subprocess.Popen[bytes], Path]] = []

        def stop(process: subprocess.Popen[bytes]) -> None:
            os.kill(process.pid, signal.SIGSTOP)
            second.append(self.build())
            time.sleep(3)
            os.kill(process.pid, signal.SIGCONT)

        first = self.at_step(kind, stop)
        ended = [self.project.ended(*item) for item in second]
        return next((item for item in ended if item.status != 0), first)

    def together(self, killed: int) -> Ended:
        """Eight builds at once; some are killed."""
        started = [self.build() for _ in range(AT_ONCE)]
        victims = self.chance.sample(range(AT_ONCE), killed)
        for number in victims:
            time.sleep(self.chance.uniform(0.2, 3))
            with contextlib.suppress(ProcessLookupError):
                started[number][0].kill()
        ended = [self.project.ended(*item) for item in started]
        alive = [item for number, item in enumerate(ended) if number not in victims]
        return next((item for item in alive if item.status != 0), alive[0])

    # Chains.

    def chain(self, state: str, strikes: Sequence[Aimed], words: tuple[str, ...] = ()) -> None:
        """Strike one after the other, then run in peace; judge after each."""
        project = self.project
        self.words = words
        self._undisturbed(words)
        project.load(state)
        finished: set[str] = set()
        mine: list[Strike] = []
        for name, act in strikes:
            done = act()
            if done is None:
                # It came to its end before: a second strike, and the next, need something to do.
                project.load(state)
                finished = set()
                if (done := act()) is None:
                    project.load(state)
                    continue
            strike = Strike(name, done.status, struck=done.status != 0 or name not in LIMITS)
            self._judge(strike, [done], finished)
            mine.append(strike)
        last = project.ended(*self.build())
        if mine:
            self._judge(mine[-1], [last], finished)
            mine[-1].lost += self._ended_badly(last)
        self._keep(mine)

    def _judge(self, strike: Strike, runs: list[Ended], finished: set[str]) -> None:
        project = self.project
        strike.left += project.left_running()
        strike.half += project.half_visible()
        strike.tracebacks += project.tracebacks(*runs)
        for run in runs:
            strike.lost += [
                f"{name} is made again" for name in run.steps("step-started") if name in finished
            ]
            finished.update(run.steps("step-finished"))

    def _ended_badly(self, last: Ended) -> list[str]:
        if last.status != 0:
            return [f"ended with {last.status}: {last.stderr[-1500:]}"]
        made = self.project.results()
        wanted = self._undisturbed(self.words)
        names = sorted(made.keys() | wanted.keys())
        return [f"{name} differs" for name in names if made.get(name) != wanted.get(name)]

    def _keep(self, strikes: list[Strike]) -> None:
        self.strikes += strikes
        for strike in strikes:
            said = "ok" if not strike.bad else json.dumps(asdict(strike))[:1500]
            self.say(f"{len(self.strikes):4} {strike.name}: exit {strike.status}, {said}")

    # Publishers, who need no build.

    def prepare_shelf(self) -> None:
        """Publish some wheels in peace, once."""
        self.project.load("new")
        if self.shelf:
            return
        for path in self.wheels():
            done = self.publish(path)
            if done.status != 0:
                raise CampaignError(f"{path.name} cannot be published: {done.stderr}")
        self.shelf = self.project.results("shelf")
        self.project.load("new")

    def wheels(self) -> list[Path]:
        """As many wheels as there are publishers, from those the server has."""
        return sorted(self.project.folder.glob("brought/*.whl"))[:AT_ONCE]

    def publish(self, wheel: Path) -> Ended:
        """Publish one wheel in peace."""
        return self.project.ended(*self.project.start("publish", "--index", "shelf", str(wheel)))

    def publishers(self, name: str, act: str, latest: int) -> None:
        """Publish the wheels, each struck once and then published again."""
        self.prepare_shelf()
        mine = []
        for path in self.wheels():
            words = ("publish", "--index", "shelf", str(path))
            done = self.from_within("shelf", act, latest, "torchsmith publish", *words)
            if done is not None:
                strike = Strike(name, done.status)
                again = self.publish(path)
                self._judge(strike, [done, again], set())
                strike.lost += [f"ended with {again.status}: {again.stderr[-500:]}"] * (
                    again.status != 0
                )
                mine.append(strike)
        self._shelf_is_whole(mine)

    def publishers_together(self, killed: int) -> None:
        """Eight publishers at once; some are killed, and start again."""
        self.prepare_shelf()
        paths = self.wheels()
        started = [self.project.start("publish", "--index", "shelf", str(path)) for path in paths]
        victims = self.chance.sample(range(len(paths)), killed)
        for number in victims:
            time.sleep(self.chance.uniform(0.1, 0.6))
            with contextlib.suppress(ProcessLookupError):
                started[number][0].kill()
        mine = []
        for number, item in enumerate(started):
            done = self.project.ended(*item)
            name = f"{AT_ONCE} publishers, {killed} killed"
            strike = Strike(name, done.status, struck=done.status == -signal.SIGKILL)
            if number in victims:
                done = self.publish(paths[number])
            self._judge(strike, [done], set())
            strike.lost += [f"ended with {done.status}: {done.stderr[-500:]}"] * (done.status != 0)
            mine.append(strike)
        self._shelf_is_whole(mine)

    def _shelf_is_whole(self, strikes: list[Strike]) -> None:
        if strikes and self.project.results("shelf") != self.shelf:
            strikes[-1].lost.append("the index differs")
        self._keep(strikes)


def _kind(run: Ended, step: str) -> str:
    for event in run.events:
        if event.get("event") == "step-started" and event.get("step") == step:
            return str(event["kind"])
    return ""


def kill_main(process: subprocess.Popen[bytes]) -> None:
    """Kill torchsmith alone; what it started has to be ended by its guard."""
    process.kill()


def kill_compiler(process: subprocess.Popen[bytes]) -> bool:
    """Kill a compiler, as the kernel does when memory runs out."""
    until = time.monotonic() + 15
    while time.monotonic() < until and process.poll() is None:
        for pid in process_tree(process.pid):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() in COMPILERS:
                    os.kill(pid, signal.SIGKILL)
                    return True
    return False


def _children(process: subprocess.Popen[bytes]) -> dict[int, bytes]:
    """What torchsmith started itself, with the command lines."""
    found = {}
    for pid in process_tree(process.pid):
        with contextlib.suppress(OSError, IndexError):
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if parent == process.pid:
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
    return found


def _kill_one(process: subprocess.Popen[bytes], word: bytes) -> bool:
    until = time.monotonic() + 5
    while time.monotonic() < until and process.poll() is None:
        for pid, line in _children(process).items():
            if word in line:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    return True
        time.sleep(0.02)
    return False


def kill_shell(process: subprocess.Popen[bytes]) -> bool:
    """Kill the shell that runs a step."""
    return _kill_one(process, b"pipefail")


def kill_guard(process: subprocess.Popen[bytes]) -> bool:
    """Kill what ends the steps of a torchsmith that is killed."""
    return _kill_one(process, b"members()")


# A broken file server, a disk that is taken back, a table of files that is full.
BROKEN = (
    errno.EIO,
    errno.ESTALE,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EACCES,
    errno.EMFILE,
)
WORDS = (
    "entries",
    "incoming",
    "journal.db",
    "memory.db",
    "/work/",
    "/store/",
    "locks",
    "/logs/",
    "/out",
)


def groups(campaign: Campaign, number: int, *, whole: bool) -> dict[str, Callable[[], None]]:
    """Every kind of fault, by name; unless `whole`, none that takes a new environment."""
    one = campaign
    chance = one.chance
    clock = chance.choice([-1, 1]) * chance.choice([3600, DAY_S, 400 * DAY_S])
    victims = {"torchsmith": kill_main, "everything": kill_all, "the step's shell": kill_shell}

    def killed(kind: str, victim: str, act: Act) -> Aimed:
        return f"SIGKILL of {victim} at {kind}", lambda: one.at_step(kind, act)

    def within(name: str, act: str, latest: int, word: str) -> Aimed:
        return f"{name} at a call on {word}", lambda: one.from_within(word, act, latest)

    def broken(word: str) -> Aimed:
        code = chance.choice(BROKEN)
        act = f"{chance.choice(['once', 'errno'])} {code}"
        return within(errno.errorcode[code], act, 80, word)

    kills = [killed(kind, *item) for kind in LATER for item in victims.items()]
    kills.insert(0, killed("compile", "a compiler", kill_compiler))
    databases = ["journal.db", "memory.db"] * 4
    code = chance.choice(BROKEN)
    found: dict[str, Callable[[], None]] = {
        "kill": lambda: one.chain("small", kills),
        "writes": lambda: one.chain("small", [within("SIGKILL", "kill", 60, w) for w in WORDS * 2]),
        "databases": lambda: one.chain(
            "small", [within("SIGKILL", "kill", 30, word) for word in databases]
        ),
        "errors": lambda: one.chain("small", [broken(word) for word in WORDS]),
        "publishers": lambda: one.publishers("SIGKILL of a publisher", "kill", 60),
        "publishers-errors": lambda: one.publishers(
            f"{errno.errorcode[code]} of a publisher", f"errno {code}", 60
        ),
        "publishers-together": lambda: one.publishers_together(number % 4),
        "guard": lambda: one.chain(
            "small", [killed("compile", "the guard", kill_guard), ("out of memory", one.memory)]
        ),
        "stopped": lambda: one.chain(
            "small", [("SIGSTOP of a lock's holder", lambda: one.holder_stops("compile"))]
        ),
        "slow": lambda: one.chain(
            "small",
            [
                within(f"clock {clock:+} s", f"clock {clock}", 40, "/store/"),
                within("slow file server", "slow 5", 5, "/store/"),
            ],
        ),
    }
    if one.project.mounted:
        # First what needs a step that was not yet run.
        disks: list[Aimed] = [("disk taken away", lambda: one.away("compile"))]
        disks += [("full disk", one.full) for _ in range(4)]
        disks += [("no inodes", one.no_inodes) for _ in range(3)]
        disks.append(("read-only disk", one.read_only))
        found["disk"] = lambda: one.chain("small", disks)
    if whole:
        early = [killed(kind, *item) for kind in KINDS[:2] for item in victims.items()]
        early.append(("server hangs up", one.server_hangs_up))
        if one.project.mounted:
            early.append(("no network", one.no_network))
        torch = [killed(kind, *item) for kind in WHOLE_KINDS for item in victims.items()]
        torch.append(killed("compile", "a compiler", kill_compiler))
        found["torch"] = lambda: one.chain("whole", torch, WHOLE_WORDS)
        found["early"] = lambda: one.chain("new", early)
        found["together"] = lambda: one.chain(
            "small", [("8 builds, 3 of them killed", lambda: one.together(3))]
        )
    return found


def report(campaign: Campaign) -> tuple[list[str], int]:
    """The table, and how much is wrong in all."""
    rows = []
    names = sorted({strike.name.partition(" at a call")[0] for strike in campaign.strikes})
    in_vain = sum(not strike.struck for strike in campaign.strikes)
    totals: Counter[str] = Counter()
    for name in names:
        mine = [item for item in campaign.strikes if item.name.partition(" at a call")[0] == name]
        counts = [sum(len(getattr(item, count)) for item in mine) for count in COUNTS]
        totals.update(dict(zip(COUNTS, counts, strict=True)))
        times = sum(item.struck for item in mine)
        rows.append(f"{name:<42} {times:>6} " + " ".join(f"{count:>10}" for count in counts))
    head = f"{'fault':<42} {'times':>6} " + " ".join(f"{count:>10}" for count in COUNTS)
    in_all = [totals[count] for count in COUNTS]
    rows.append(
        f"{'in all':<42} {len(campaign.strikes) - in_vain:>6} "
        + " ".join(f"{n:>10}" for n in in_all)
    )
    rows.append(f"{in_vain} more were judged that ran beside others or had room enough")
    return [head, *rows], sum(in_all)


def main() -> int:
    """Read the arguments, strike, and say what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", choices=("minutes", "hour"), default="minutes")
    parser.add_argument("--rounds", type=int, help="instead of --size")
    parser.add_argument("--only", help="groups of faults, divided by commas")
    parser.add_argument("--seed", type=int, default=25)
    parser.add_argument("--folder", type=Path, help="an empty folder, which stays")
    parser.add_argument("--json", type=Path, help="write every strike to this file")
    given = parser.parse_args()
    # Also then nothing may stay mounted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="faults-"))).absolute()
    project = Project(folder)
    campaign = Campaign(project, given.seed, lambda line: print(line, flush=True))
    rounds = given.rounds or {"minutes": 1, "hour": 5}[given.size]
    try:
        began = time.monotonic()
        campaign.prepare()
        for number in range(rounds):
            found = groups(campaign, number, whole=given.size == "hour")
            for name in found if given.only is None else given.only.split(","):
                found[name]()
    except CampaignError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        project.close()
        rows, bad = report(campaign)
        print("\n".join(rows))
        if given.json:
            document = {
                "seed": given.seed,
                "seconds": round(time.monotonic() - began),
                "disk_in_memory": project.mounted,
                "strikes": [asdict(strike) for strike in campaign.strikes],
            }
            given.json.write_text(json.dumps(document, indent=1), encoding="utf-8")
    print(f"seed {given.seed}, {time.monotonic() - began:.0f} s, {folder}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
