"""A real browser for the pages: Chromium without a window, spoken to through a pipe.

Mouse, keys and fingers are sent as the system would send them; nothing is installed for it.
"""

import base64
import fcntl
import hashlib
import io
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --remote-debugging-pipe "
    "--no-first-run --no-default-browser-check --disable-extensions --disable-sync "
    "--disable-background-networking --disable-component-update --disable-default-apps "
    "--disable-features=Translate,OptimizationHints,MediaRouter --mute-audio "
    "--force-color-profile=srgb --hide-scrollbars --password-store=basic"
)
LONGEST = 20.0  # seconds without a word from the browser
KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35}
KEYS |= {"Escape": 27, "Tab": 9, "Enter": 13, " ": 32}

Message = dict[str, Any]


class Browser:
    """A running Chromium with one tab."""

    def __init__(self, program: str, folder: Path) -> None:
        ours_in, self._out = os.pipe()
        self._in, ours_out = os.pipe()
        # The browser reads from 3 and writes to 4; copies with high numbers first, so that neither
        # is overwritten before its turn.
        high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 50) for end in (ours_in, ours_out)]
        errors = str(folder / "errors.txt")
        self._process = os.posix_spawn(
            program,
            [program, *FLAGS.split(), f"--user-data-dir={folder / 'profile'}", "about:blank"],
            {**os.environ, "HOME": str(folder)},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, high[0], 3),
                (os.POSIX_SPAWN_DUP2, high[1], 4),
                (os.POSIX_SPAWN_OPEN, 1, errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_OPEN, 2, errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            ],
            setpgroup=0,
        )
        for end in (ours_in, ours_out, *high):
            os.close(end)
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
        os.killpg(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)

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

    def open(
        self,
        path: Path,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        touch: bool = False,
    ) -> None:
        """Load a page from the disk in a window of this size; clear previous messages."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=touch,
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url="about:blank")
        self.wait("location.protocol === 'about:'")
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait("location.protocol === 'file:' && document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression on the page."""
        actual = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in actual:
            raise RuntimeError(actual["exceptionDetails"])
        return actual["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + LONGEST
        while not self._is_true(expression):
            if time.monotonic() > end:
                raise TimeoutError(f"never came true: {expression}")
            time.sleep(0.01)

    def _is_true(self, expression: str) -> bool:
        try:
            return bool(self.value(expression))
        except RuntimeError as error:
            if "navigated" not in str(error):  # in the middle of loading there is no page to ask
                raise
            return False

    def place(self, selector: str, index: int = 0) -> tuple[float, float]:
        """Return the center of an element, scrolled into view; a script may still create it."""
        actual = f"document.querySelectorAll({json.dumps(selector)})[{index}]"
        self.wait(f"{actual} !== undefined")
        x, y = self.value(
            f"(e => {{ e.scrollIntoView({{block: 'nearest'}}); const r = e.getBoundingClientRect();"
            f"return [r.x + r.width / 2, r.y + r.height / 2] }})({actual})"
        )
        return x, y

    def alive(self, path: Path, **window: Any) -> None:
        """Load a page of a photo, and wait for its script."""
        self.open(path, **window)
        self.wait("document.documentElement.classList.contains('alive')")

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
        at = {"x": left + x * width, "y": top + y * height}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def hover(self, selector: str, index: int = 0) -> None:
        """Move the mouse onto an element."""
        x, y = self.place(selector, index)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str, index: int = 0) -> None:
        """Click on an element."""
        x, y = self.place(selector, index)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def tap(self, selector: str, index: int = 0) -> None:
        """Touch an element."""
        x, y = self.place(selector, index)
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, *keys: str) -> None:
        """Press keys one after the other."""
        for key in keys:
            code = KEYS.get(key, 0)
            text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
            common = {"key": key, "code": key, "windowsVirtualKeyCode": code}
            self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def complaints(self) -> list[str]:
        """Return messages, exceptions and policy violations since the page was opened."""
        kinds = (
            "Log.entryAdded",
            "Runtime.consoleAPICalled",
            "Runtime.exceptionThrown",
            "Page.javascriptDialogOpening",
        )
        return [
            json.dumps(event["params"]) for event in self.events if event.get("method") in kinds
        ]

    def requests(self) -> list[str]:
        """Return the addresses that were requested since the page was opened.

        Left out are data: and what the page's own policy stopped.
        """
        stopped, sent = set(), {}
        for event in self.events:
            page_data = event.get("params", {})
            if event.get("method") == "Network.requestWillBeSent":
                sent[page_data["requestId"]] = page_data["request"]["url"]
            if page_data.get("blockedReason") == "csp":
                stopped.add(page_data["requestId"])
        urls = (url for identity, url in sent.items() if identity not in stopped)
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
