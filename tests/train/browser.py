"""Drives a headless Chromium through the DevTools protocol over two pipes."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

_ARGUMENTS = [
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # test machines run as root in containers, where the sandbox cannot start
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
]


class Failure(Exception):
    """The browser did not do what it was told, or did not answer."""


class Browser:
    """One browser with one page. What the page complains about collects in `complaints`, every
    address it asks for in `requests`."""

    def __init__(self, program, timeout_s=120):
        self.timeout_s = timeout_s
        self.complaints, self.requests = [], []
        self._events, self._number, self._rest = [], 0, b""
        self._profile = tempfile.mkdtemp(prefix="headroom-browser-")
        from_us, self._write_end = os.pipe()
        self._read_end, to_us = os.pipe()
        # The browser reads commands from descriptor 3 and writes to 4. Both are moved out of the
        # way first, for either may be 3 or 4 already.
        high = [os.dup(end) for end in (from_us, to_us)]
        while min(high) < 10:
            high = [os.dup(end) for end in high]

        def connect():
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            [program, *_ARGUMENTS, "--user-data-dir=" + self._profile, "about:blank"],
            preexec_fn=connect, close_fds=False, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for end in {from_us, to_us, *high}:
            os.close(end)
        self._session = None
        target = self._ready_target()
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def _ready_target(self):
        deadline = time.monotonic() + self.timeout_s
        while time.monotonic() < deadline:
            for info in self.call("Target.getTargets")["targetInfos"]:
                if info["type"] == "page":
                    return info["targetId"]
            time.sleep(0.1)
        raise Failure("the browser opened no page")

    def close(self):
        try:
            self._session = None
            self.call("Browser.close")
            self._process.wait(20)
        except (Failure, OSError, subprocess.TimeoutExpired):
            os.killpg(self._process.pid, 9)
            self._process.wait()
        for end in (self._read_end, self._write_end):
            os.close(end)
        shutil.rmtree(self._profile, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        self.close()

    def _next_message(self, deadline):
        while b"\0" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._read_end], [], [], left)[0]:
                raise Failure("the browser did not answer in time")
            part = os.read(self._read_end, 1 << 16)
            if not part:
                raise Failure("the browser ended")
            self._rest += part
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def _note(self, message):
        method, what = message.get("method"), message.get("params", {})
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            details = what["exceptionDetails"]
            text = details.get("exception", {}).get("description") or details["text"]
            self.complaints.append("exception: " + text)
        elif (method == "Runtime.consoleAPICalled"
              and what["type"] in ("error", "warning", "assert")):
            said = [str(each.get("value", each.get("description"))) for each in what["args"]]
            self.complaints.append(f"console {what['type']}: {' '.join(said)}")
        elif method == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"log {what['entry']['level']}: {what['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])

    def call(self, method, **params):
        self._number += 1
        command = {"id": self._number, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._write_end, json.dumps(command).encode() + b"\0")
        deadline = time.monotonic() + self.timeout_s
        while True:
            message = self._next_message(deadline)
            if message.get("id") == self._number:
                if "error" in message:
                    raise Failure(f"{method}: {message['error']['message']}")
                return message["result"]
            self._note(message)

    def open(self, url, width=1280, height=900, dark=False):
        """Loads the page anew in a window of this size; a narrow one is a phone's."""
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=2 if phone else 1, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"}])
        self.complaints.clear()
        self.requests.clear()
        self._events.clear()
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + self.timeout_s
        while "Page.loadEventFired" not in self._events:
            self._note(self._next_message(deadline))
        self.settle()

    def settle(self):
        """Two frames: what observers draw after a change of size is on the page then."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame("
                      "() => done(true))))")

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise Failure(details.get("exception", {}).get("description") or details["text"])
        return result["result"].get("value")

    def press(self, key, code=None):
        """A key as a person presses it, on what has the focus."""
        text = {"Enter": "\r", " ": " "}.get(key)
        virtual = {"Enter": 13, " ": 32, "ArrowLeft": 37, "ArrowRight": 39, "Tab": 9,
                   "Home": 36, "End": 35}[key]
        common = {"key": key, "code": code or key, "windowsVirtualKeyCode": virtual}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common,
                  **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def point_at(self, selector, part_x=0.5, part_y=0.5, click=False):
        """Moves the mouse to a place of an element, given in parts of its box."""
        x, y = self.evaluate(f"""(() => {{
            const found = document.querySelector({json.dumps(selector)});
            found.scrollIntoView({{block: "center"}});
            const box = found.getBoundingClientRect();
            return [box.left + box.width * {part_x}, box.top + box.height * {part_y}];
        }})()""")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left",
                          clickCount=1)
        self.settle()

    def picture(self, path):
        """Of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                         clip=clip)
        with open(path, "wb") as out:
            out.write(base64.b64decode(shot["data"]))
