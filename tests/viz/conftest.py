"""A real browser for the pages: Chromium without a window, spoken to through a pipe.

Mouse, keys and fingers are sent as the system would send them; nothing is installed for it.
"""

import base64
import hashlib
import io
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --remote-debugging-pipe "
    "--no-first-run --disable-extensions --disable-background-networking "
    "--disable-component-update --force-color-profile=srgb --hide-scrollbars"
)
LONGEST = 20.0  # seconds without a word from the browser
KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35}
KEYS |= {"Escape": 27, "Tab": 9, "Enter": 13, " ": 32}
COMPLAINTS = {
    "Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown",
    "Page.javascriptDialogOpening",
}  # fmt: skip

Message = dict[str, Any]


class Browser:
    """A running Chromium with one tab."""

    def __init__(self, program: str, folder: Path) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        start = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'  # it reads from 3, writes to 4
        words = [program, *FLAGS.split(), f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", start, *words], pass_fds=(theirs_in, theirs_out), start_new_session=True,
            env={**os.environ, "HOME": str(folder)}, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer, self._count, self._session = b"", 0, ""
        self.events: list[Message] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser and its child processes."""
        os.close(self._out)
        os.close(self._in)
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def call(self, method: str, **parameters: Any) -> Message:
        """Call a method of the DevTools protocol and wait for its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _next(self) -> Message:
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], LONGEST)[0]:
                raise TimeoutError(f"the browser said nothing for {LONGEST:.0f} s")
            self._buffer += os.read(self._in, 1 << 20)
        line, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(line)

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a page from the disk in a window, of a phone if narrow; clear earlier messages."""
        touch = width < 500
        size: Message = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": touch}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url="about:blank")
        self.wait("location.protocol === 'about:'")
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait("location.protocol === 'file:' && document.readyState === 'complete'")

    def alive(self, path: Path, **window: Any) -> None:
        """Load a page of a photo, and wait for its script."""
        self.open(path, **window)
        self.wait("document.documentElement.classList.contains('alive')")

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression on the page."""
        options: Message = {"returnByValue": True, "awaitPromise": True}
        actual = self.call("Runtime.evaluate", expression=expression, **options)
        if "exceptionDetails" in actual:
            raise RuntimeError(actual["exceptionDetails"])
        return actual["result"].get("value")

    def all(self, selector: str, expression: str = "e.innerText") -> list[Any]:
        """Return the value of an expression of each element `e`."""
        return self.value(f"[...document.querySelectorAll(`{selector}`)].map(e => {expression})")

    def wait(self, expression: str) -> None:
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + LONGEST
        while time.monotonic() < end:
            with suppress(RuntimeError):  # in the middle of loading there is no page to ask
                if self.value(expression):
                    return
            time.sleep(0.01)
        raise TimeoutError(f"never came true: {expression}")

    def place(self, selector: str, index: int = 0) -> tuple[float, float]:
        """Return the center of an element, scrolled into view; a script may still create it."""
        actual = f"document.querySelectorAll({json.dumps(selector)})[{index}]"
        self.wait(f"{actual} !== undefined")
        x, y = self.value(
            f"(e => {{ e.scrollIntoView({{block: 'nearest'}}); const r = e.getBoundingClientRect();"
            f"return [r.x + r.width / 2, r.y + r.height / 2] }})({actual})"
        )
        return x, y

    def text(self, selector: str) -> str:
        """Return the text of an element."""
        return self.value(f"document.querySelector({selector!r}).innerText")

    def pixels(self, canvas: str = "#overlay") -> np.ndarray:
        """Return what is drawn on a canvas, in RGB."""
        self.wait(f"document.querySelector({canvas!r}) !== null")
        address = self.value(f"document.querySelector({canvas!r}).toDataURL()")
        content = base64.b64decode(address.split(",")[1])
        return np.array(Image.open(io.BytesIO(content)).convert("RGB"))

    def shown(self) -> str:
        """Return a name of the map that is drawn; `photo` without one."""
        if self.value("document.getElementById('overlay').hidden"):
            return "photo"
        return hashlib.sha256(self.pixels().tobytes()).hexdigest()

    def mouse(self, x: float, y: float, *, click: bool = False) -> None:
        """Move the mouse to a position of the photo, in fractions of its frame."""
        left, top, width, height = self.value(
            "(r => [r.x, r.y, r.width, r.height])(frame.getBoundingClientRect())"
        )
        self._point(left + x * width, top + y * height, click=click)

    def hover(self, selector: str, index: int = 0) -> None:
        """Move the mouse onto an element."""
        self._point(*self.place(selector, index))

    def click(self, selector: str, index: int = 0) -> None:
        """Click on an element."""
        self._point(*self.place(selector, index), click=True)

    def _point(self, x: float, y: float, *, click: bool = False) -> None:
        button: Message = {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def tap(self, selector: str, index: int = 0) -> None:
        """Touch an element."""
        x, y = self.place(selector, index)
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, *keys: str) -> None:
        """Press keys one after the other."""
        for key in keys:
            text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
            common = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS.get(key, 0)}
            self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def complaints(self) -> list[Message]:
        """Return messages, exceptions and policy violations since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") in COMPLAINTS]

    def requests(self) -> list[str]:
        """Return the addresses that were requested since the page was opened.

        Left out are data: and what the page's own policy stopped.
        """
        page = [event["params"] for event in self.events if "params" in event]
        stopped = {each["requestId"] for each in page if each.get("blockedReason") == "csp"}
        sent = [each for each in page if "request" in each and each["requestId"] not in stopped]
        urls = [each["request"]["url"] for each in sent]
        return [url for url in urls if not url.startswith(("data:", "about:"))]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Start a browser for all tests that need it."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(names)} is installed")
    started = Browser(program, tmp_path_factory.mktemp("browser"))
    try:
        yield started
    finally:
        started.close()
