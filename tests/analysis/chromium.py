"""Drives a headless Chromium over a pipe: a page, keys, a pointer, pictures."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE_S = 60
SETTLE_MS = 400
CODES = {" ": "Space", "/": "Slash", "?": "Slash"}
NUMBERS = {"Escape": 27, "Enter": 13, "Tab": 9}


def find_chromium() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Page:
    """One page; everything that it complains of is collected."""

    def __init__(self, write_to: int, read_from: int) -> None:
        self._write_to, self._read_from = write_to, read_from
        self._buffer, self._number = b"", 0
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write_to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read_from], [], [], 1)
            if ready:
                read = os.read(self._read_from, 1 << 20)
                assert read, "Chromium has ended"
                self._buffer += read
            assert time.monotonic() < end, "Chromium does not answer"
        message, self._buffer = self._buffer.split(b"\0", 1)
        event = json.loads(message)
        self._note(event.get("method"), event.get("params", {}))
        return event

    def _note(self, method: str | None, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(str(params["args"]))
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append(f"dialog: {params['message']}")

    def open(self, address: str, width: int = 1440, height: int = 900) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.send("Page.navigate", url=address)
        end = time.monotonic() + PATIENCE_S
        while self.value("document.readyState") != "complete":
            assert time.monotonic() < end, f"{address} does not load"

    def value(self, expression: str) -> Any:
        """Return what an expression is in the page."""
        result = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def text(self, selector: str) -> str:
        found: str = self.value(f"document.querySelector({selector!r}).textContent")
        return found

    def key(self, key: str) -> None:
        event: dict[str, Any] = {"key": key, "code": CODES.get(key, key)}
        event["windowsVirtualKeyCode"] = NUMBERS.get(key, 0)
        if len(key) == 1:
            event["text"] = key
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, **event)

    def hover(self, selector: str) -> None:
        box = self.value(
            f"document.querySelector({selector!r}).getBoundingClientRect().toJSON()"
        )
        self.send(
            "Input.dispatchMouseEvent",
            type="mouseMoved",
            x=box["x"] + box["width"] / 2,
            y=box["y"] + box["height"] / 2,
        )

    def settle(self) -> None:
        """Wait until what was typed has been acted on and painted."""
        self.send(
            "Runtime.evaluate",
            expression=f"new Promise((done) => setTimeout(done, {SETTLE_MS}))",
            awaitPromise=True,
        )

    def screenshot(self, path: Path) -> None:
        picture = self.send("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(picture))


@contextmanager
def chromium_page(program: str, profile: Path) -> Iterator[Page]:
    """Start a browser that talks over two pipes, its file descriptors 3 and 4."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    command = [program, *FLAGS, f"--user-data-dir={profile}"]
    # A shell moves the pipes to where Chromium looks for them.
    moved = f'exec "$@" 3<&{to_read} 4>&{from_write}'
    with subprocess.Popen(
        ["bash", "-c", moved, "chromium", *command],
        pass_fds=(to_read, from_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as browser:
        os.close(to_read)
        os.close(from_write)
        try:
            yield Page(to_write, from_read)
        finally:
            browser.kill()
            os.close(to_write)
            os.close(from_read)
