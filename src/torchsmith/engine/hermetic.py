"""Run a program that sees what it is shown and nothing else.

    python3 -I -S hermetic.py VIEW PROGRAM [ARGUMENT…]

VIEW is a file of JSON:
  network  false: the program gets a network of its own with nothing but the loopback
  files    what it sees, as [how, source, target]; null: all there is. The root is a new, empty
           folder. How: `ro` and `rw` show a file or folder, `empty` is a folder with nothing in it,
           `scratch` one in memory that can be written to, `link` a symbolic link to the source
  resolver the file in which programs look for a name server

Linux allows both to root and, on most machines, to everybody in a user namespace. Where it is not
allowed, this runs nothing and ends with 125. Names that the program asks the network for are
printed, once each. With an empty VIEW that is all this does: a container has closed the rest.

It starts with every step, so it imports only what it needs, and only the standard library.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import sys

_NEW_FILES = 0x00020000
_NEW_USER = 0x10000000
_NEW_NETWORK = 0x40000000
_SET_FLAGS = 0x8914
_UP_AND_RUNNING = 0x41
_READ_ONLY, _REMOUNT, _BIND, _DETACH = 1, 32, 4096, 2
_RECURSIVE, _PRIVATE = 16384, 1 << 18
# Those that a bind mount keeps when it becomes read-only.
_FLAGS = {
    "nosuid": 2,
    "nodev": 4,
    "noexec": 8,
    "noatime": 1024,
    "nodiratime": 2048,
    "relatime": 1 << 21,
}
_DROP_BOUNDING, _DIE_WITH_PARENT = 24, 1
# With these root could undo it: CAP_DAC_READ_SEARCH, SYS_MODULE, SYS_RAWIO, SYS_PTRACE, SYS_ADMIN,
# SYS_BOOT, MKNOD.
_UNDOING = (2, 16, 17, 19, 21, 22, 27)
CANNOT = 125
# The beginning of a line in a step's log.
ASKED = "this step has no network, and asked for "
_OLD = "/old"
_RESOLVER = "/resolv.conf"
# Programs ask this machine for names: `_listen` answers.
ITSELF = "nameserver 127.0.0.1\nsearch .\n"
_NO_SUCH_NAME = b"\x81\x83"

_libc = ctypes.CDLL(None, use_errno=True)


def _do(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    words = [text.encode(errors="surrogateescape") for text in (source, target, kind, options)]
    _do(_libc.mount(*words[:3], ctypes.c_ulong(flags), words[3]), f"mount {target}")


def _leave(flags: int) -> None:
    """Leave the namespaces of the caller; the same user inside as outside."""
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(flags):
        _do(_libc.unshare(flags | _NEW_USER), "unshare")
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def _start_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP_AND_RUNNING))


def _show(files: list[list[str]], resolver: str) -> None:
    """Make a new root with these files in it, and go there."""
    folder, mask = os.getcwd(), os.umask(0o022)
    _mount("", "/", "", _PRIVATE | _RECURSIVE)
    # Once it is the root, what it covers is there again, below _OLD.
    _mount("tmpfs", "/tmp", "tmpfs", 0, "mode=755")
    os.mkdir(f"/tmp{_OLD}")
    _do(_libc.pivot_root(b"/tmp", f"/tmp{_OLD}".encode()), "pivot_root")
    os.chdir("/")
    if resolver:
        with open(_RESOLVER, "w") as file:
            file.write(ITSELF)
        files = [*files, ["ro", _RESOLVER, resolver]]
    for how, source, target in files:
        place = source if source == _RESOLVER else _OLD + source
        if how == "link":
            os.symlink(source, target)
        elif how in ("empty", "scratch"):
            os.makedirs(target, exist_ok=True)
            _mount("tmpfs", target, "tmpfs", 0, "mode=1777" if how == "scratch" else "mode=755")
        elif os.path.exists(place):
            _make_place(target, folder=os.path.isdir(place))
            _mount(place, target, "", _BIND | _RECURSIVE)
    _do(_libc.umount2(_OLD.encode(), _DETACH), "umount")
    os.rmdir(_OLD)
    _protect({target: how for how, _, target in files})
    os.chdir(folder)
    os.umask(mask)
    for capability in _UNDOING:
        # An unknown one is no harm, and one that is not had cannot be dropped.
        _libc.prctl(_DROP_BOUNDING, capability, 0, 0, 0)


def _make_place(target: str, *, folder: bool) -> None:
    if not os.path.lexists(target):
        os.makedirs(target if folder else os.path.dirname(target), exist_ok=True)
        if not folder:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))


def _protect(shown: dict[str, str]) -> None:
    """Make everything read-only that was not shown to be written to."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = [line.split() for line in file]
    for mount in mounts:
        target = mount[4].replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n")
        target = target.replace("\\134", "\\")
        above = target
        while above not in shown and above != "/":
            above = above.rpartition("/")[0] or "/"
        if shown.get(above) not in ("rw", "scratch"):
            flags = sum(_FLAGS.get(name, 0) for name in mount[5].split(","))
            _mount("", target, "", _REMOUNT | _BIND | _READ_ONLY | flags)


def _listen() -> None:
    """Answer every question for a name with no, and print the name; ends with the program."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as answering:
        try:
            answering.bind(("", 53))
        except OSError:
            # In a container without the right to: names are not printed there.
            return
        program = os.getpid()
        if os.fork():
            return
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != program:
            os._exit(0)
        own, known = socket.gethostname().lower(), set()
        while True:
            question, asking = answering.recvfrom(4096)
            name, end = _name(question)
            # A name without a dot is a machine's own; others ask for who has an address.
            if "." in name and name not in known and name != own and not name.endswith(".arpa"):
                known.add(name)
                os.write(1, f"{ASKED}{name}\n".encode())
            counts = struct.pack(">4H", 1, 0, 0, 0)
            answer = question[:2] + _NO_SUCH_NAME + counts + question[12 : end + 4]
            answering.sendto(answer, asking)


def _name(question: bytes) -> tuple[str, int]:
    """The name that is asked for, and where in the question it ends."""
    labels, at = [], 12
    while at < len(question) and (length := question[at]):
        labels.append(question[at + 1 : at + 1 + length])
        at += 1 + length
    text = ".".join(label.decode("ascii", "replace") for label in labels)
    return "".join(sign for sign in text if sign.isprintable()).lower(), at + 1


def main(view: str) -> None:
    """Shut the program off; raises OSError where that is not allowed."""
    with open(view, encoding="utf-8") as file:
        asked = json.loads(file.read() or "{}")
    files, closed = asked.get("files"), asked.get("network") is False
    if files is not None or closed:
        _leave((_NEW_FILES if files is not None else 0) | (_NEW_NETWORK if closed else 0))
    if closed:
        _start_loopback()
    if files is not None:
        _show(files, asked["resolver"] if closed else "")
    if asked.get("network") is not True:
        _listen()


def _run(command: list[str]) -> None:
    # os.execvp would import more of a library that may not be seen any more.
    for folder in os.environ.get("PATH", os.defpath).split(":"):
        program = os.path.join(folder, command[0])
        if os.access(program, os.X_OK):
            os.execv(program, command)
    print(f"hermetic.py: {command[0]} is not on PATH", file=sys.stderr)
    os._exit(CANNOT)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except OSError as error:
        print(f"hermetic.py: {error}", file=sys.stderr)
        sys.exit(CANNOT)
    _run(sys.argv[2:])
