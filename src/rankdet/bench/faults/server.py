"""A process that has imported torch, and forks a child for every request: seconds become tenths.

It reads requests from its standard input, one JSON object a line, and answers with one line when a
child has started and one when it has ended. When the input ends, however that came, it kills all
children that are left. Its only thread is this one, or forks would not be safe.

Not multiprocessing's server: that one belongs to the processes that load data, of which there is
one for each process; and its children outlive a parent that was killed.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from rankdet.bench.faults import patches

_POLL_SECONDS = 0.02  # how often it looks for children that have ended

Request = dict[str, Any]


def main() -> None:
    """Serve until the input ends; in a child, do what it was forked for.

    The arguments are the modules that children find imported.
    """
    for module in sys.argv[1:]:
        importlib.import_module(module)
    _answer({"ready": True})
    request = _serve()
    if request is not None:
        _work(request)


def _serve() -> Request | None:
    """Fork for every request. Comes back in each child with its request; in the server: None."""
    children: set[int] = set()
    rest = b""
    while True:
        readable, _, _ = select.select([0], [], [], _POLL_SECONDS)
        if readable:
            received = os.read(0, 65536)
            if not received:
                _kill(children)
                return None
            *lines, rest = (rest + received).split(b"\n")
            for line in lines:
                child = os.fork()
                if child == 0:
                    return dict(json.loads(line))
                children.add(child)
                _answer({"started": child})
        _report_ended(children)


def _report_ended(children: set[int]) -> None:
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            return
        children.discard(child)
        _answer({"ended": child, "status": os.waitstatus_to_exitcode(status)})


def _kill(children: set[int]) -> None:
    for child in children:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with suppress(ProcessLookupError):  # it may not have had the time to lead a group
            os.kill(child, signal.SIGKILL)


def _answer(content: dict[str, Any]) -> None:
    os.write(1, json.dumps(content).encode() + b"\n")


def _work(request: Request) -> None:
    """The life of a child: its own session and files, the patches, and then the function."""
    os.setsid()
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(output)
    os.close(nothing)
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # TMPDIR may be another one now
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    patches.apply(request["patches"])
    patches.named(request["function"])(*request["arguments"])


def run_command(*arguments: str) -> None:
    """`rankdet` with these arguments."""
    sys.argv = ["rankdet", *arguments]
    patches.named(patches.COMMAND)()


def write_result(file: str, function: str, *arguments: Any) -> None:
    """Call the function of this name, and write as JSON what it returns."""
    result = patches.named(function)(*arguments)
    Path(file).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
