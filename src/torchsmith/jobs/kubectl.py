"""kubectl: the one place that starts it.

Requests go through its `--raw`, so that kubectl does what only it can (find the cluster, log in,
talk to it) and every version of it sends the same: what is asked is the published API itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import IO
from urllib.parse import urlencode

from pydantic import JsonValue

from torchsmith.errors import ClusterError, HostError, TookTooLongError
from torchsmith.foreign import MalformedError, read_json, table, tables, text
from torchsmith.jobs.client import NoAnswerError
from torchsmith.programs import call
from torchsmith.redact import redacted

_TIMEOUT_S = 30
# kubectl may start a program that logs in, and that may be slow.
_PATIENCE_S = 120
_LONGEST_MESSAGE = 600
# Where a pod finds who it is; kubectl looks there itself.
_IN_CLUSTER = "in-cluster"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_ANSWERED = re.compile(r"(?:Error from server(?: \((\w+)\))?|error): (.*)", re.DOTALL)
_LOGGED_OUT = re.compile(r"You must be logged in to the server(?: \((\w+)\))?")
# What a server says that could say something else a moment later.
_NOT_NOW = frozenset(
    ("InternalError", "ServiceUnavailable", "Timeout", "ServerTimeout", "TooManyRequests")
)
_NO_ANSWER = re.compile(
    r"Unable to connect to the server|connection to the server .* was refused|EOF|"
    r"connection reset|i/o timeout|request timed out|context deadline exceeded|Client\.Timeout|"
    r"TLS handshake timeout"
)
_UNHEARD = re.compile(r"was refused|connection refused|no such host")
_LASTING = re.compile(r"certificate|x509|gave HTTP response to HTTPS client")


class ServerRefusedError(ClusterError):
    """The API server said no; `reason` is its own word for why."""

    def __init__(self, reason: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.reason = reason


class Kubectl:
    """kubectl with one of its contexts."""

    def __init__(self, context: str = "") -> None:
        self.program = shutil.which("kubectl") or ""
        if not self.program:
            raise HostError("kubectl is missing", "https://kubernetes.io/docs/tasks/tools/#kubectl")
        self.context = context or self._current()

    @cached_property
    def namespace(self) -> str:
        """Where objects go that do not say so themselves."""
        if self.context == _IN_CLUSTER:
            return _ACCOUNT.read_text(encoding="utf-8").strip() if _ACCOUNT.exists() else "default"
        answer = self._config("--context", self.context, "view", "--minify", "--output=json")
        contexts = tables(_read(answer, self.context).get("contexts")) or [{}]
        return text(table(contexts[0].get("context")), "namespace") or "default"

    def get(self, path: str, **query: str) -> Mapping[str, JsonValue]:
        """An object, or a list of them."""
        return self._json("get", path, query)

    def create(
        self, path: str, thing: Mapping[str, JsonValue], **query: str
    ) -> Mapping[str, JsonValue]:
        """A new object."""
        return self._json("create", path, query, json.dumps(thing))

    def delete(self, path: str, **query: str) -> None:
        """Delete an object."""
        self._json("delete", path, query)

    def opened(self, path: str, **query: str) -> subprocess.Popen[bytes]:
        """A file of the server, read as it grows; whoever opens it ends the process."""
        command = [*self._command(), "get", "--raw", _address(path, query)]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def complaint(self, stderr: IO[bytes] | None) -> ClusterError:
        """Why a process of `opened` ended badly."""
        text = stderr.read().decode(errors="replace") if stderr else ""
        return self._error(text)

    def _command(self) -> list[str]:
        named = [] if self.context == _IN_CLUSTER else ["--context", self.context]
        return [self.program, *named]

    def _json(
        self, verb: str, path: str, query: Mapping[str, str], content: str | None = None
    ) -> Mapping[str, JsonValue]:
        more = [] if content is None else ["--filename", "-"]
        command = [*self._command(), verb, "--raw", _address(path, query), *more]
        command.append(f"--request-timeout={_TIMEOUT_S}s")
        try:
            ended = call(command, stdin=(content or "").encode(), timeout=_PATIENCE_S)
        except TookTooLongError:
            raise NoAnswerError(
                f"kubectl did not end within {_PATIENCE_S} s",
                f"Try it alone; it may wait for a login: kubectl --context {self.context} get pods",
            ) from None
        if ended.code < 0:
            raise NoAnswerError(f"kubectl was ended by signal {-ended.code}", "Try again.")
        if ended.code != 0:
            raise self._error(ended.err)
        return _read(ended.out or "{}", self.context)

    def _error(self, output: str) -> ClusterError:
        # Warnings of kubectl itself stand before what counts.
        text = redacted(output.strip())
        found = _ANSWERED.search(text)
        if logged_out := _LOGGED_OUT.search(text):
            return ServerRefusedError(
                logged_out[1] or "Unauthorized",
                f"the cluster of {self.context} does not know who you are",
                "Log in again, as its administrator says: kubectl auth whoami",
            )
        if (found is None or not found[1]) and _NO_ANSWER.search(text):
            return NoAnswerError(
                f"the cluster of {self.context} cannot be reached: {_last(text)}",
                "Check the network, and the server of this context: kubectl config view",
                unheard=_UNHEARD.search(text) is not None,
                lasting=_LASTING.search(text) is not None,
            )
        reason, message = (found[1] or "", found[2]) if found else ("", text)
        message = message[:_LONGEST_MESSAGE]
        if reason in _NOT_NOW:
            return NoAnswerError(
                f"the cluster of {self.context} has no answer: {message}",
                "It may be overloaded or starting: try again later.",
                # Turned away at the door.
                unheard=reason == "TooManyRequests",
            )
        return ServerRefusedError(reason, message or "kubectl failed and printed nothing")

    def _current(self) -> str:
        try:
            return self._config("current-context").strip()
        except ClusterError:
            if "KUBERNETES_SERVICE_HOST" in os.environ:
                return _IN_CLUSTER
            raise ClusterError(
                "kubectl has no cluster set up",
                "Set KUBECONFIG, or choose one: kubectl config use-context NAME",
            ) from None

    def _config(self, *words: str) -> str:
        ended = call([self.program, "config", *words])
        if ended.code != 0:
            last = ended.last[:_LONGEST_MESSAGE] or "it says nothing"
            raise ClusterError(f"kubectl: {redacted(last)}", "kubectl config view")
        return ended.out


def _read(answer: str, context: str) -> Mapping[str, JsonValue]:
    with contextlib.suppress(MalformedError):
        if isinstance(value := read_json(answer), dict):
            return value
    raise ClusterError(
        f"the server of {context} does not answer as Kubernetes does",
        "Check the server of this context: kubectl config view",
    )


def _address(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_LONGEST_MESSAGE] if lines else "it says nothing"
