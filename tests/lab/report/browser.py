"""A headless Chromium, driven over its debugging pipe: no driver, no package, no port."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE_S = 60  # for one answer; a slow machine starts a browser in ten seconds
# Errors of Chromium if the page navigates during a call. The call can be repeated.
GONE = ("navigated or closed", "context was destroyed", "Cannot find context")


def chromium() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


# The centre of an element, or null if it is missing or something unrelated covers it.
FIND_CENTRE = """(() => {
  const e = document.querySelector(%s);
  if (!e) return null;
  e.scrollIntoView({block: 'center', inline: 'center'});
  const b = e.getBoundingClientRect();
  const x = b.x + b.width / 2, y = b.y + b.height / 2;
  const hit = document.elementFromPoint(x, y);
  return hit && (e.contains(hit) || hit.contains(e)) ? [x, y] : null;
})()"""


def gone(error: RuntimeError) -> bool:
    """Return whether the call failed because the page navigated meanwhile."""
    return any(word in str(error) for word in GONE)


class Browser:
    """One tab. ``visit`` empties ``requests`` (URLs) and ``complaints`` (errors, log messages)."""

    def __init__(self, profile: Path) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4; the shell redirects them.
        words = [
            chromium() or "chromium",
            *"--headless --no-sandbox --disable-gpu --no-first-run".split(),
            *"--disable-dev-shm-usage --disable-background-networking --hide-scrollbars".split(),
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "chromium", *words],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out, self._rest, self._last = ours_in, ours_out, b"", 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._last += 1
        request = self._last
        message = {"id": request, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._read()
            if reply.get("id") == request:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']}")
                return reply["result"]
            self._note(reply)

    def open(self, file: Path, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        self.visit(file.resolve().as_uri(), width, height, scheme)

    def visit(self, url: str, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.scheme(scheme)
        self.requests, self.complaints, self._events = [], [], []
        loader = self.call("Page.navigate", url=url)["loaderId"]
        # Match the loader, since the previous page may still be loading and send the same event.
        event = {"name": "load", "loaderId": loader}
        while not any(event.items() <= one.get("params", {}).items() for one in self._events):
            self._note(self._read())

    def scheme(self, name: str) -> None:
        self.call(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}]
        )

    def run(self, script: str) -> Any:
        """Return an expression's value. If the page navigates, evaluate it in the next page."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                reply = self.call("Runtime.evaluate", expression=script, returnByValue=True)
                break
            except RuntimeError as error:
                if not gone(error) or time.monotonic() > end:
                    raise
                time.sleep(0.02)
        if "exceptionDetails" in reply:
            raise RuntimeError(f"{script}: {reply['exceptionDetails']}")
        return reply["result"].get("value")

    def click(self, selector: str) -> None:
        """Click an element with the mouse once it stops moving. Raises RuntimeError if it is
        missing or covered."""
        end, before = time.monotonic() + PATIENCE_S, None
        while (centre := self.run(FIND_CENTRE % json.dumps(selector))) is None or centre != before:
            before = centre
            if time.monotonic() > end:
                raise RuntimeError(f"{selector} cannot be clicked: it is not there, or covered")
            time.sleep(0.02)
        mouse = {"x": centre[0], "y": centre[1], "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", **mouse)
        try:
            self.call("Input.dispatchMouseEvent", type="mouseReleased", **mouse)
        except RuntimeError as error:
            if not gone(error):  # if gone, the click was on a link, which opened another page
                raise

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def close(self) -> None:
        self._session = None
        try:
            self.call("Browser.close")
            self._process.wait(PATIENCE_S)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def _note(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        method, params = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(f"console.{params['type']}: {params['args']}")
        elif method == "Log.entryAdded":
            self.complaints.append(f"{params['entry']['level']}: {params['entry']['text']}")

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_S
        while b"\0" not in self._rest:
            if not select.select([self._in], [], [], max(0.0, end - time.monotonic()))[0]:
                raise RuntimeError(f"the browser has not answered for {PATIENCE_S} s")
            piece = os.read(self._in, 1 << 20)
            if not piece:
                raise RuntimeError("the browser has ended")
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


def started(folder: Path) -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip("machine: no chromium (scripts/test installs it on Debian)")
    browser = Browser(folder)
    yield browser
    browser.close()
