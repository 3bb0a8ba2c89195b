"""A real browser for tests of pages: headless Chromium, driven through a pipe.

It is skipped where none is installed; RANKDET_BROWSER names another one, and with
RANKDET_BROWSER_REQUIRED=1 a missing browser is a failure.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():  # Triton's kernels then run here, interpreted, on CPU tensors
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported, not later
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells start jobs in the background so, and programs that the tests start would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "headless_shell")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe"),
)
SECONDS = 20.0  # for any one answer of the browser
KEYS = {  # what a key event needs beside the key's name
    "Enter": {"code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"},
    " ": {"code": "Space", "windowsVirtualKeyCode": 32, "text": " "},
    "Tab": {"code": "Tab", "windowsVirtualKeyCode": 9},
}
# The browser reads from descriptor 3 and writes to 4; a new process must move its pipes there.
LAUNCH = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
LAUNCH += "os.execv(sys.argv[3], sys.argv[3:])"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A running browser; it and its files are gone after the tests."""
    chosen = os.environ.get("RANKDET_BROWSER")
    names = [chosen] if chosen else NAMES
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        message = f"no browser: not found: {', '.join(names)} (RANKDET_BROWSER may name another)"
        if os.environ.get("RANKDET_BROWSER_REQUIRED") == "1":
            pytest.fail(message)
        pytest.skip(message)
    with tempfile.TemporaryDirectory(prefix="rankdet-browser-", ignore_cleanup_errors=True) as data:
        running = Browser(path, Path(data))
        try:
            yield running
        finally:
            running.close()


class Browser:
    """A Chromium process that has at most one page open."""

    def __init__(self, path: str, data: Path) -> None:
        self._events: list[dict[str, Any]] = []
        self._received = b""
        self._num_calls = 0
        self._page: Page | None = None
        self._log = (data / "log.txt").open("wb")
        theirs, self._output = _pipe()
        self._input, their_output = _pipe()
        launch = [sys.executable, "-c", LAUNCH, str(theirs), str(their_output)]
        self._process = subprocess.Popen(
            [*launch, path, *FLAGS, f"--user-data-dir={data / 'profile'}", "about:blank"],
            pass_fds=(theirs, their_output),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # so that its children can be ended with it
        )
        os.close(theirs)
        os.close(their_output)
        os.set_blocking(self._output, False)
        try:
            self.call("Browser.getVersion")
        except BaseException:
            self.close()
            raise

    def open(
        self,
        path: Path,
        *,
        width: int = 1440,
        height: int = 900,
        scheme: str = "light",
        media: str = "screen",
        has_scripts: bool = True,
    ) -> Page:
        """The file, loaded in a new page; an earlier page is closed. A narrow one is a phone's."""
        if self._page is not None:
            self._page.call("Page.close")
        self._events.clear()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.resize(width, height)
        page.emulate(scheme, media)
        page.call("Emulation.setScriptExecutionDisabled", value=not has_scripts)
        page.call("Page.navigate", url=path.as_uri())
        self.wait_for("Page.loadEventFired", session)
        return page

    def call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """The result of a method of the DevTools protocol."""
        self._num_calls += 1
        message = {"id": self._num_calls, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        deadline = time.monotonic() + SECONDS
        self._send(json.dumps(message).encode() + b"\0", deadline)
        while True:
            answer = self._receive(deadline, method)
            if answer.get("id") == self._num_calls:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def wait_for(self, event: str, session: str) -> None:
        """Come back when the event has happened since the page was made."""
        deadline = time.monotonic() + SECONDS
        while not self.events(event, session):
            self._receive(deadline, event)

    def events(self, name: str, session: str) -> list[dict[str, Any]]:
        """The parameters of all events of this name so far."""
        return [
            event["params"]
            for event in self._events
            if event["method"] == name and event.get("sessionId") == session
        ]

    def close(self) -> None:
        """End the process and all its children, whatever state they are in."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(SECONDS)
        for stream in (self._input, self._output):
            os.close(stream)
        self._log.close()

    def _send(self, message: bytes, deadline: float) -> None:
        while message:
            _, ready, _ = select.select([], [self._output], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise TimeoutError(f"the browser does not take a message; {self._last_words()}")
            message = message[os.write(self._output, message) :]

    def _receive(self, deadline: float, purpose: str) -> dict[str, Any]:
        """The next message; an event is kept as well, and a dialogue is answered."""
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._input], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise TimeoutError(f"no answer for {purpose} in {SECONDS} s; {self._last_words()}")
            content = os.read(self._input, 1 << 20)
            if not content:
                raise RuntimeError(f"the browser has ended in {purpose}; {self._last_words()}")
            self._received += content
        text, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self._events.append(message)
        if message.get("method") == "Page.javascriptDialogOpening":  # all waits until it is closed
            self._num_calls += 1
            reply = {"id": self._num_calls, "method": "Page.handleJavaScriptDialog"}
            reply |= {"params": {"accept": False}, "sessionId": message["sessionId"]}
            self._send(json.dumps(reply).encode() + b"\0", deadline)
        return message

    def _last_words(self) -> str:
        return "it said: " + Path(self._log.name).read_text(errors="replace")[-1000:]


def _pipe() -> list[int]:
    """The ends to read from and to write to, away from the descriptors 3 and 4."""
    import fcntl  # not on Windows, where the other tests may run

    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved


class Page:
    """One loaded file."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, **parameters: Any) -> Any:
        """The result of a method of the DevTools protocol for this page."""
        return self._browser.call(method, self._session, **parameters)

    def resize(self, width: int, height: int) -> None:
        """Make the window this large."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def emulate(self, scheme: str = "light", media: str = "screen") -> None:
        """Let the user prefer this colour scheme ("light" or "dark"); media: or "print"."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; of a promise, what it comes to."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression[:200]}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def requests(self) -> list[str]:
        """Every address that the page has asked for, its own first."""
        events = self._browser.events("Network.requestWillBeSent", self._session)
        return [event["request"]["url"] for event in events]

    def complaints(self) -> list[str]:
        """Errors, warnings, uncaught exceptions and dialogues, whatever the console shows."""
        found = []
        for entry in self._browser.events("Log.entryAdded", self._session):
            if entry["entry"]["level"] in ("warning", "error"):
                found.append(f"{entry['entry']['level']}: {entry['entry']['text']}")
        for message in self._browser.events("Runtime.consoleAPICalled", self._session):
            if message["type"] in ("warning", "error", "assert"):
                values = [value.get("value") for value in message["args"]]
                found.append(f"console.{message['type']}: {values}")
        for problem in self._browser.events("Runtime.exceptionThrown", self._session):
            details = problem["exceptionDetails"]
            found.append(f"uncaught: {details.get('exception', details).get('description')}")
        for dialogue in self._browser.events("Page.javascriptDialogOpening", self._session):
            found.append(f"dialogue: {dialogue['message']}")
        return found

    def click(self, selector: str) -> None:
        """Press and release the mouse in the middle of the first element that is meant."""
        quoted = json.dumps(selector)
        place = self.evaluate(
            f"""(() => {{
                const element = document.querySelector({quoted});
                element.scrollIntoView({{block: "center", behavior: "instant"}});
                const box = element.getBoundingClientRect();
                const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
                const hit = document.elementFromPoint(x, y);
                return element.contains(hit) ? [x, y] : String(hit && hit.outerHTML);
            }})()"""
        )
        if isinstance(place, str):
            raise RuntimeError(f"{selector} cannot be clicked: above it is {place[:200]}")
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=place[0],
                y=place[1],
                button="left",
                clickCount=1,
            )

    def press(self, key: str) -> None:
        """Press and release a key: "Enter", " " or "Tab"."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **KEYS[key])

    def screenshot(self, path: Path, *, is_whole: bool = True) -> Path:
        """The path, with a PNG of the whole page or of what is in the window."""
        content = self.call("Page.captureScreenshot", captureBeyondViewport=is_whole)["data"]
        path.write_bytes(base64.b64decode(content))
        return path

    def pdf(self) -> bytes:
        """The page as it would be printed."""
        content = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        return base64.b64decode(content["data"])
