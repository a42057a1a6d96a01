"""The compiler launcher: asks the governor for room, runs the compiler, tells what it took.

    python -I -S launch.py g++ -c file.cpp -o file.o

It runs once for every file of a build, so it imports next to nothing: with `os`, `socket` and
`json` it starts in 30 ms, with what is below in 11. What a command compiles, what its messages
mean and whether to try again is the governor's business. Where there is no governor, as in a
build folder someone builds by hand later, it becomes the compiler.

A message is four bytes of length and fields with zero bytes between them.
  to the governor:    ask, folder, argument...   |   pid, number of the compiler's process   |
                      done, status, KiB, CPU s, wall s, last words
  from the governor:  run, further argument...   |   end   |   fail, explanation
"""

from __future__ import annotations

import _socket
import posix
import select
import sys
import time

SOCKET = b"TORCHSMITH_GOVERNOR"
_TAIL = 1 << 14
_HELD = 1 << 20
TYPE_CHECKING = False
if TYPE_CHECKING:
    from resource import struct_rusage

    _Ended = tuple[int, int, struct_rusage]

_SIGPIPE, _SIGTERM, _SIGXFSZ = 13, 15, 25
# While this program lives its compiler should be the first to go when memory runs out, before
# the build tool and torchsmith itself, whose loss would end the build.
_EXPENDABLE = b"500"


def main(argv: list[str]) -> int:
    """Run a command under the governor, and return its exit status."""
    command = argv[1:] if argv[:1] == ["--"] else argv
    if not command:
        return _print(b"usage: launch.py COMMAND [ARGUMENT...]\n", 2)
    governor = _connected(posix.environ.get(SOCKET))
    # What the compiler starts in turn runs in the room given here, and must not ask for more.
    posix.environ.pop(SOCKET, None)
    if governor is None:
        return _become(command)
    status, words = 1, b""
    try:
        _send(governor, b"ask", posix.getcwdb(), *[_bytes(word) for word in command])
        answer = _receive(governor)
        while answer[0] == b"run":
            more = [str(word, sys.getfilesystemencoding()) for word in answer[1:]]
            status, words, report = _run(governor, command + more)
            _send(governor, *report)
            if status == 0:
                return _print(words, 0)
            # What a killed compile said is not shown if it is to be tried again.
            answer = _receive(governor)
        return _print(words + b"\0".join(answer[1:]), status)
    except ConnectionError:
        return _print(b"torchsmith's memory governor has gone; this compile was given up\n", 1)


def _run(governor: _socket.socket, command: list[str]) -> tuple[int, bytes, tuple[bytes, ...]]:
    began = time.monotonic()
    reader, writer = posix.pipe()
    actions = [(posix.POSIX_SPAWN_DUP2, writer, 2)]
    before = _swap_oom_score(_EXPENDABLE)
    try:
        child = posix.posix_spawnp(
            command[0],
            command,
            posix.environ,
            file_actions=actions,
            # Python ignores these two, and a program would inherit that.
            setsigdef=(_SIGPIPE, _SIGXFSZ),
        )
    except OSError as error:
        posix.close(writer)
        posix.close(reader)
        words = f"{command[0]}: {error.strerror}\n".encode()
        return 127, words, (b"done", b"127", b"0", b"0", b"0", words)
    finally:
        if before:
            _swap_oom_score(before)
    posix.close(writer)
    try:
        _send(governor, b"pid", b"%d" % child)
    except ConnectionError:
        posix.kill(child, _SIGTERM)
        raise
    words, tail, ended = _listen(reader, child, governor)
    posix.close(reader)
    _, status, usage = ended or posix.wait4(child, 0)
    code = posix.WEXITSTATUS(status) if posix.WIFEXITED(status) else 128 + posix.WTERMSIG(status)
    report = (
        b"done",
        b"%d" % code,
        b"%d" % usage.ru_maxrss,
        b"%.3f" % (usage.ru_utime + usage.ru_stime),
        b"%.3f" % (time.monotonic() - began),
        tail,
    )
    return code, words, report


def _listen(
    reader: int, child: int, governor: _socket.socket
) -> tuple[bytes, bytes, _Ended | None]:
    """Read what the compiler says: (not yet printed, last words, how it ended if known)."""
    words = tail = b""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    # Only its end is of interest: it may have gone before it heard of this compiler.
    poll.register(governor, 0)
    while True:
        ready = [number for number, _ in poll.poll(1000)]
        if governor.fileno() in ready:
            poll.unregister(governor)
            posix.kill(child, _SIGTERM)
            continue
        # Something it left running, a cache's server say, may hold its output open for ever.
        if not ready:
            ended = posix.wait4(child, posix.WNOHANG)
            if ended[0]:
                return words, tail, ended
            continue
        chunk = posix.read(reader, 1 << 16)
        if not chunk:
            return words, tail, None
        words += chunk
        tail = (tail + chunk)[-_TAIL:]
        if len(words) > _HELD:
            _write(words)
            words = b""


def _swap_oom_score(score: bytes) -> bytes:
    """Set how readily the kernel kills this process and what it starts; return what it was."""
    try:
        file = posix.open("/proc/self/oom_score_adj", posix.O_RDWR)
    except OSError:
        return b""
    try:
        before = posix.read(file, 16).strip()
        # Not lowered for someone who set it higher.
        if score is _EXPENDABLE and int(before) >= int(score):
            return b""
        posix.write(file, score)
        return before
    except OSError:
        return b""
    finally:
        posix.close(file)


def _become(command: list[str]) -> int:
    import os

    try:
        os.execvp(command[0], command)
    except OSError as error:
        return _print(f"{command[0]}: {error.strerror}\n".encode(), 127)


def _connected(place: bytes | None) -> _socket.socket | None:
    if not place:
        return None
    link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        link.connect(place)
    except OSError:
        return None
    return link


def _send(link: _socket.socket, *fields: bytes) -> None:
    body = b"\0".join(fields)
    link.sendall(len(body).to_bytes(4, "big") + body)


def _receive(link: _socket.socket) -> list[bytes]:
    size = int.from_bytes(_exactly(link, 4), "big")
    return _exactly(link, size).split(b"\0")


def _exactly(link: _socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = link.recv(size - len(data))
        if not chunk:
            raise ConnectionError
        data += chunk
    return data


def _bytes(word: str) -> bytes:
    return word.encode(sys.getfilesystemencoding(), "surrogateescape")


def _write(words: bytes) -> None:
    while words:
        words = words[posix.write(2, words) :]


def _print(words: bytes, status: int) -> int:
    _write(words)
    return status


if __name__ == "__main__":
    try:
        posix._exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        posix._exit(130)
