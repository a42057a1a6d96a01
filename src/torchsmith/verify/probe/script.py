"""Use the torch of this Python and say what happened: one JSON document between two markers.

Each check runs in a process of its own, forked after torch was imported once: a crash or a
hang is that check's result, and costs no other check anything.
"""

import errno
import faulthandler
import importlib.machinery
import importlib.util
import json
import os
import platform
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from typing import Any

BEGIN = "-----BEGIN TORCHSMITH PROBE-----"
END = "-----END TORCHSMITH PROBE-----"
HERE = os.path.dirname(os.path.abspath(__file__))
TAIL = 2000


def load(name: str) -> Any:
    """Load a file beside this one; its folder is not on the path, and should not be."""
    module_name = "torchsmith_probe_" + name
    spec = importlib.util.spec_from_file_location(module_name, os.path.join(HERE, name + ".py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # By its name a worker process can find what it has to unpickle.
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module


def signal_name(number: int) -> str:
    """SIGSEGV for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def result(status: str, found: str = "", detail: str = "") -> "dict[str, Any]":
    """Return what a check says."""
    return {"status": status, "found": found, "detail": detail}


def attempt(function: Any) -> "dict[str, Any]":
    """Call a check; what it raises is its result."""
    try:
        outcome = function()
    except BaseException as error:
        # By name: the files that raise it are loaded apart from each other.
        if type(error).__name__ == "Absent":
            return result("absent", "", str(error))
        text = traceback.format_exc()
        first = str(error).strip().split("\n")[0][:200]
        return result("fail", "%s: %s" % (type(error).__name__, first), text[-TAIL:])
    if isinstance(outcome, dict):
        return dict(outcome)
    return result("pass", "" if outcome is None else str(outcome))


def isolated(function: Any, timeout: float) -> "dict[str, Any]":
    """Call a check in a process of its own; the answer comes back through a pipe."""
    reader, writer = os.pipe()
    log = tempfile.TemporaryFile()
    began = time.time()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.close(reader)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        faulthandler.enable(sys.stderr)
        text = json.dumps(attempt(function), default=str) + "\n"
        data = text.encode("utf-8")
        while data:
            data = data[os.write(writer, data) :]
        # Not through Python's own end: what torch does there is the import check's business.
        os._exit(0)
    os.close(writer)
    received, ending = listen(reader, pid, began + timeout)
    os.close(reader)
    log.seek(0)
    noise = log.read().decode("utf-8", "replace")[-TAIL:]
    log.close()
    if received.endswith(b"\n"):
        outcome = dict(json.loads(received.decode("utf-8")))  # type: dict[str, Any]
        if outcome["status"] == "fail" and noise and noise not in outcome["detail"]:
            outcome["detail"] = (outcome["detail"] + "\n" + noise).strip()
    elif ending is None:
        outcome = result("fail", "did not end within %g s" % timeout, noise)
    elif ending < 0:
        outcome = result("fail", "ended by " + signal_name(-ending), noise)
    else:
        outcome = result("fail", "ended with code %d" % ending, noise)
    outcome["seconds"] = round(time.time() - began, 2)
    return outcome


def listen(reader: int, pid: int, deadline: float) -> "tuple[bytes, int | None]":
    """Collect an answer until its line end, the process' end, or the deadline."""
    received = b""
    ending = None  # type: int | None
    try:
        while not received.endswith(b"\n"):
            # Asked before the pipe is looked at: what an ended process said is in it already.
            # A worker it left behind may hold the pipe open: end-of-file tells nothing.
            done, status = os.waitpid(pid, os.WNOHANG) if ending is None else (0, 0)
            if done:
                ending = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            ready = select.select([reader], [], [], 0 if ending is not None else 0.05)[0]
            piece = os.read(reader, 65536) if ready else b""
            received += piece
            if (ending is not None and not piece) or time.time() > deadline:
                break
    finally:
        # Its workers are in its session, and end with it; also when this process is told to.
        end(pid)
        if ending is None:
            os.waitpid(pid, 0)
    return received, ending


def end(pid: int) -> None:
    """Kill a session that may have ended by itself."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError as error:
        if error.errno != errno.ESRCH:
            raise


def stop(number: int, frame: Any) -> None:
    """Turn a signal into an exception, so that what was started is ended on the way out."""
    sys.exit(128 + number)


def import_torch(timeout: float, alone: bool = True) -> "dict[str, Any]":
    """Import torch in a fresh Python and let that end by itself."""
    began = time.time()
    process = subprocess.Popen(
        [sys.executable]
        + (["-I"] if alone else [])
        + ["-c", "import torch; print(torch.__version__)"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        out = process.communicate(timeout=timeout)[0].decode("utf-8", "replace").strip()
    except subprocess.TimeoutExpired:
        process.kill()
        out = process.communicate()[0].decode("utf-8", "replace")
        return result("fail", "did not end within %g s" % timeout, out[-TAIL:])
    seconds = round(time.time() - began, 2)
    last = out.split("\n")[-1][:300]
    if process.returncode == 0:
        # What else it printed is a warning of its own, such as one about NumPy.
        noise = "\n".join(out.split("\n")[:-1])
        outcome = result("warn" if noise else "pass", last, noise[-TAIL:])
    elif process.returncode < 0:
        outcome = result("fail", "ended by " + signal_name(-process.returncode), out[-TAIL:])
    else:
        outcome = result("fail", last, out[-TAIL:])
    outcome["seconds"] = seconds
    return outcome


def extension_name() -> "dict[str, Any]":
    """Whether this Python would load torch._C under the name it has; asked without importing."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return result("fail", "there is no torch in this Python")
    names = []
    for folder in spec.submodule_search_locations:
        names += [name for name in os.listdir(folder) if name.startswith("_C.")]
    libraries = [name for name in names if not name.endswith((".pyi", ".py"))]
    if any(name[2:] in importlib.machinery.EXTENSION_SUFFIXES for name in libraries):
        return result("pass", ", ".join(sorted(libraries)))
    wanted = "_C" + importlib.machinery.EXTENSION_SUFFIXES[0]
    found = ", ".join(sorted(libraries)) or "no torch/_C library"
    return result("fail", found, "this Python looks for " + wanted)


def this_python() -> "dict[str, Any]":
    """Return what this interpreter is."""
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "machine": platform.machine(),
        "prefix": sys.prefix,
        "suffixes": importlib.machinery.EXTENSION_SUFFIXES,
    }


def probe(request: "dict[str, Any]") -> "dict[str, Any]":
    """Do everything; never raise for what torch does."""
    timeout = float(str(request.get("timeout", 120)))
    checks = []

    def record(group: str, name: str, outcome: "dict[str, Any]") -> None:
        checks.append(dict(outcome, group=group, name=name))

    record("python", "extension name", attempt(extension_name))
    loading = request.get("loading")
    imported = import_torch(timeout, alone=not loading)
    record("python", "import torch", imported)
    facts = {}  # type: dict[str, Any]
    loaded = {}  # type: dict[str, Any]
    listed = []  # type: list[tuple[str, str, Any]]
    only = request.get("only") or ("behaviour", "gpu", "companions")
    for name in only:
        listed += load(name).checks(request)
    if imported["status"] == "fail":
        for group, name, _ in listed:
            record(group, name, result("absent", "", "not tried: torch cannot be imported"))
    else:
        importlib.import_module("torch")
        outcome = isolated(load("facts").facts, timeout)
        if "facts" in outcome:
            facts = outcome["facts"]
        else:
            record("python", "what torch says of itself", outcome)
        if loading:
            loaded = look(loading, timeout)
        broken = set()  # type: set[str]
        for group, name, function in listed:
            if group in broken:
                record(group, name, result("absent", "", "not tried: it cannot be imported"))
                continue
            outcome = isolated(function, timeout)
            record(group, name, outcome)
            if name == "import " + group and outcome["status"] == "fail":
                broken.add(group)
    return {
        "format": 1,
        "python": this_python(),
        "facts": facts,
        "loaded": loaded,
        "checks": checks,
    }


def look(loading: "dict[str, Any]", timeout: float) -> "dict[str, Any]":
    """What is in a process with torch and its neighbours, and what cannot be loaded into one."""
    module = load("loaded")
    outcome = isolated(lambda: module.loaded(loading["neighbours"]), timeout)
    found = dict(outcome.get("loaded", {}), lost="" if "loaded" in outcome else outcome["found"])
    refused = {}
    for path in loading["libraries"]:
        outcome = isolated(lambda path=path: module.opened(path), timeout)
        if outcome["status"] == "fail":
            refused[path] = outcome["found"]
    return dict(found, refused=refused)


def main() -> None:
    """Probe, and print the document where nothing else is printed."""
    signal.signal(signal.SIGTERM, stop)
    out = os.dup(1)
    os.dup2(2, 1)
    request = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    # Python puts the folder of a script on the path; with -I it does not.
    sys.path = [path for path in sys.path if path != HERE]
    text = json.dumps(probe(request))
    with os.fdopen(out, "w") as stream:
        stream.write("\n%s\n%s\n%s\n" % (BEGIN, text, END))


if __name__ == "__main__":
    main()
