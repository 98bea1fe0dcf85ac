"""Drives a headless Chromium over the DevTools protocol, on two pipes: no port, no other library."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-extensions", "--hide-scrollbars",
    "--remote-debugging-pipe",
]  # fmt: skip
_KEYS = {
    "Enter": ("\r", 13), " ": (" ", 32), "End": ("", 35), "Home": ("", 36), "ArrowLeft": ("", 37),
    "ArrowUp": ("", 38), "ArrowRight": ("", 39), "ArrowDown": ("", 40),
}  # fmt: skip


def find_browser() -> str | None:
    """Return the path of a Chromium, or None if there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One browser with one tab; ``events`` holds all that it reported since the last page."""

    def __init__(self, profile: Path) -> None:
        get_command, self._write = os.pipe()
        self._read, give_answer = os.pipe()
        program = [find_browser(), f"--user-data-dir={profile}", *_FLAGS]
        # The browser wants its pipes as descriptors 3 and 4; a shell puts them there.
        script = f'exec "$@" 3<&{get_command} 4>&{give_answer}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *program],
            pass_fds=(get_command, give_answer),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(get_command)
        os.close(give_answer)
        self._numbers, self._rest, self._session = itertools.count(1), b"", None
        self.events: list[dict] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def call(self, method: str, **parameters):
        """Call a method of the protocol and return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self) -> dict:
        while b"\0" not in self._rest:
            data = os.read(self._read, 1 << 20)
            assert data, "the browser is gone"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def open(self, page: Path, *, width: int = 1280, height: int = 900, **media: str) -> None:
        """Open a page; ``media`` are features such as ``prefers_color_scheme="dark"``."""
        features = [{"name": k.replace("_", "-"), "value": v} for k, v in media.items()]
        self.call("Emulation.setEmulatedMedia", features=features)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.events.clear()
        loader = self.call("Page.navigate", url=page.as_uri())["loaderId"]
        while not any(_is_loaded(event, loader) for event in self.events):
            self.events.append(self._next())

    def ask(self, script: str):
        """Return the value of an expression of JavaScript in the page."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def ask_until(self, script: str, frames: int = 300) -> bool:
        """Return whether an expression of JavaScript is true in one of the next frames."""
        return self.ask(
            f"new Promise(done => {{ let left = {frames}; const look = () => ({script})"
            " ? done(true) : left-- ? requestAnimationFrame(look) : done(false); look(); })"
        )

    def click(self, selector: str) -> None:
        """Click into the middle of the first element, as a mouse does."""
        query = json.dumps(selector)
        x, y = self.ask(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect();"
            f" return [r.x + r.width / 2, r.y + r.height / 2]; }})(document.querySelector({query}))"
        )
        for kind in ("mousePressed", "mouseReleased"):
            at = {"x": x, "y": y, "button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, **at)

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            text, code = _KEYS[key]
            what = {"key": key, "text": text, "windowsVirtualKeyCode": code}
            self.call("Input.dispatchKeyEvent", type="keyDown", **what)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def type(self, text: str) -> None:
        """Type text where the focus is."""
        self.call("Input.insertText", text=text)

    def requests(self) -> list[str]:
        """Every address that the page asked for, itself included."""
        sent = (one for one in self.events if one.get("method") == "Network.requestWillBeSent")
        return [one["params"]["request"]["url"] for one in sent]

    @property
    def errors(self) -> list[str]:
        """What the page threw or a console would show."""
        names = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [json.dumps(one["params"]) for one in self.events if one.get("method") in names]

    def close(self) -> None:
        """End the browser."""
        os.close(self._write)
        os.close(self._read)
        self._process.terminate()
        self._process.wait()


def _is_loaded(event: dict, loader: str) -> bool:
    said = event.get("params", {})
    return said.get("loaderId") == loader and said.get("name") == "load"
