"""What is served about a deployment: to whom, in answer to what, and how it looks in a browser."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from ofms.coordinator.deployment import WatchTable
from ofms.coordinator.files import POLLED, STATE, STATUS
from ofms.coordinator.status import read_status
from ofms.coordinator.watch import http
from ofms.coordinator.watch.server import WatchServer, is_served, start_watch
from ofms.core.errors import InvalidInput
from ofms.drawing.charts import COLOURS
from tests.watched_fleet import watched_fleet

SOURCE = Path(http.__file__).parent


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with watched_fleet(tmp_path_factory.mktemp("watched")) as folder:
        yield folder


@pytest.fixture(scope="module")
def server(fleet: Path) -> Iterator[WatchServer]:
    with WatchServer(fleet, "127.0.0.1", 0, ["fleet.example.com"]) as served:
        yield served


def ask(
    server: WatchServer, path: str, method: str = "GET", host: str | None = None, body: bytes | None = None
) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request(method, path, body=body, headers={} if host is None else {"Host": host})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response, content


def test_health_follows_the_server(tmp_path: Path) -> None:
    with watched_fleet(tmp_path) as folder, WatchServer(folder, "127.0.0.1", 0) as server:
        response, content = ask(server, "/healthz")
        assert response.status == 200
        found = json.loads(content)
        assert found["status"] == "ok"
        assert is_served("127.0.0.1", server.port, found["deployment"])
        assert not is_served("127.0.0.1", server.port, "another")
        long_ago = time.time() - 301
        status = json.loads((folder / STATUS).read_text())
        (folder / STATUS).write_text(json.dumps(status | {"written": long_ago}))
        response, content = ask(server, "/healthz")
        assert (response.status, json.loads(content)["status"]) == (503, "silent"), "its process hangs"
        (folder / STATE / POLLED).touch()
        assert ask(server, "/healthz")[0].status == 200, "no exchange, but it works"
        os.utime(folder / STATE / POLLED, (long_ago, long_ago))
        assert ask(server, "/healthz")[0].status == 503
    with WatchServer(folder, "127.0.0.1", 0) as server:
        response, content = ask(server, "/healthz")
        assert (response.status, json.loads(content)["status"]) == (503, "stopped")
        (folder / STATUS).write_text("{")
        assert ask(server, "/healthz")[0].status == 503
        assert ask(server, "/metrics")[0].status == 503
        (folder / STATUS).write_text('{"written": 0, "devices": []}')
        assert ask(server, "/metrics")[0].status == 503, "and the next request is answered"
        (folder / STATUS).unlink()
        response, content = ask(server, "/status.json")
        assert response.status == 503
        assert b"its server has not run yet" in content
    assert not is_served("127.0.0.1", server.port, found["deployment"]), "nobody answers"


@pytest.mark.parametrize("path", ["/", "/watch.js", "/watch.css", "/status.json", "/metrics", "/healthz"])
def test_a_known_path_is_answered_and_nothing_is_allowed_to_other_sites(server: WatchServer, path: str) -> None:
    response, content = ask(server, path)
    assert response.status == 200
    assert int(response.headers["Content-Length"]) == len(content) > 0
    assert not [name for name in response.headers if name.lower().startswith("access-control")]
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    head, nothing = ask(server, path, "HEAD")
    assert (head.status, nothing) == (200, b"")


@pytest.mark.parametrize(
    "path",
    ["/../server.toml", "/%2e%2e/ca.key", "/state/checkpoint.safetensors", "//etc/passwd", "/status", "*", "/x?/"],
)
def test_nothing_else_is_served(server: WatchServer, path: str) -> None:
    assert ask(server, path)[0].status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"])
def test_only_reading_is_allowed(server: WatchServer, method: str) -> None:
    response, _ = ask(server, "/status.json", method, body=b"{}" if method in ("POST", "PUT") else None)
    assert response.status == 405
    assert response.headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9095", 200),
        ("localhost", 200),
        ("[::1]:9095", 200),
        ("Fleet.Example.com:9095", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("fleet.example.com.evil.example", 421),
        ("localhost@evil.example", 421),
        ("", 421),
    ],
)
def test_the_name_of_another_site_is_refused(server: WatchServer, host: str, status: int) -> None:
    """A page of that site could read this one if its name resolved to this machine."""
    assert ask(server, "/status.json", host=host)[0].status == status


def test_two_host_names_are_refused(server: WatchServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(b"GET /status.json HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.0 421")


@pytest.mark.parametrize(
    "content", [b"\x00" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"x" * 70_000, b"\r\n" * 50]
)
def test_a_malformed_request_harms_nobody(server: WatchServer, content: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(content)
        client.shutdown(socket.SHUT_WR)
        while client.recv(65536):
            pass
    assert ask(server, "/healthz")[0].status == 200


def test_slow_clients_are_cut_off_and_too_many_refused(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_LONGEST_SECONDS", 2.0)
    with WatchServer(fleet, "127.0.0.1", 0) as server, ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 60)) for _ in range(16)]
        stopping = threading.Event()
        senders = [threading.Thread(target=_drip, args=(each, stopping)) for each in slow]
        for sender in senders:
            sender.start()
        # The last of them has its place, so all do.
        slow[-1].sendall(b"GET / HTTP/1.1\r\n")
        with socket.create_connection(("127.0.0.1", server.port), 60) as another:
            assert _rest(another) == b"", "refused without an answer"
        assert [_rest(each) for each in slow] == [b""] * 16, "cut off, though they keep sending"
        stopping.set()
        for sender in senders:
            sender.join()
        wait_for(lambda: is_served("127.0.0.1", server.port, _deployment(fleet)))


def _deployment(folder: Path) -> str:
    return str(read_status(folder)["deployment"])


def _rest(client: socket.socket) -> bytes:
    """What a server sends before it closes the connection."""
    found = b""
    try:
        while content := client.recv(65536):
            found += content
    except ConnectionError:
        pass
    return found


def _drip(client: socket.socket, stopping: threading.Event) -> None:
    """A byte now and then, so that no read times out."""
    while not stopping.wait(0.2):
        try:
            client.sendall(b"x")
        except OSError:
            return


def test_a_port_in_use_is_said_in_one_line(server: WatchServer, fleet: Path) -> None:
    expected = rf"watch = 127\.0\.0\.1:{server.port}: another program uses it; choose another port"
    with pytest.raises(InvalidInput, match=expected) as error:
        start_watch(fleet, WatchTable(port=server.port))
    assert len(str(error.value).splitlines()) == 1
    assert start_watch(fleet, WatchTable()) is None, "port 0: none"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_the_page_in_chromium(browser: Any, server: WatchServer, theme: str, width: int) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get(server.url)
    wait_for(lambda: browser.find_elements("css selector", "svg[data-chart]"))
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    charts = browser.find_elements("css selector", "svg[data-chart]")
    assert {chart.get_attribute("data-chart") for chart in charts} == {
        *("score-chart", "answers-chart", "bytes-chart", "time-chart")
    }
    assert all(chart.size["width"] > 0.4 * min(width, 700) and chart.size["height"] > 150 for chart in charts)
    assert all(chart.find_elements("css selector", ".chart-lines path[d^='M']") for chart in charts)
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(overflow) <= 0, "nothing overflows to the right"
    cut = "each => each.scrollWidth > each.clientWidth"
    cut = f"return [...document.querySelectorAll('.figures dd')].filter({cut}).length"
    assert browser.execute_script(cut) == 0, "no figure is cut"
    figures = browser.find_element("id", "figures").text
    for expected in ("devices connected\n2\nof 3", "exchanges\n4\nof 6", "rejected messages\n1"):
        assert expected in figures
    states = [row.text.split()[:2] for row in browser.find_elements("css selector", "#devices tbody tr")]
    assert states == [["device-0", "connected"], ["device-1", "connected"], ["device-2", "disconnected"]]
    rows = browser.find_elements("css selector", "#models tbody tr")
    shares = [float(re.findall(r"([\d.]+) %", row.text)[0]) for row in rows]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert shares == sorted(shares, reverse=True)
    assert "<script>alert(1)</script>" in browser.find_element("id", "refusals").text, "as text"
    assert len(browser.get_screenshot_as_png()) > 10_000


def test_the_page_is_live_and_says_when_nobody_answers(browser: Any, tmp_path: Path) -> None:
    with watched_fleet(tmp_path, exchanges=2) as folder:
        server = WatchServer(folder, "127.0.0.1", 0)
        browser.get(server.url)
        wait_for(lambda: "running" in browser.find_element("id", "state").text)
    wait_for(lambda: "stopped" in browser.find_element("id", "state").text)
    status = json.loads((folder / STATUS).read_text())
    status |= {"exchange": 1234, "in_use": [name for name in status["models"] if name != "net1"], "quorum": 0.8}
    (folder / STATUS).write_text(json.dumps(status))
    wait_for(lambda: "1234" in browser.find_element("id", "figures").text)
    shown = [row.text.split()[0] for row in browser.find_elements("css selector", "#models tbody tr")]
    assert sorted(shown) == status["in_use"], "those in use"
    assert browser.find_element("id", "retired").text == "Retired: net1."
    assert "5 models, quorum 80.0 %" in browser.find_element("id", "summary").text
    field = browser.find_element("id", "filter")
    field.send_keys("CE-2")
    assert len(browser.find_elements("css selector", "#devices tbody tr")) == 1
    server.close()
    wait_for(lambda: "unreachable" in browser.find_element("id", "state").text)
    assert browser.find_element("id", "problem").is_displayed()


def wait_for(condition: Any) -> None:
    until = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_the_page_has_the_report_s_colours() -> None:
    colours = set(re.findall(r"#[0-9A-F]{6}\b", (SOURCE / "watch.js").read_text() + (SOURCE / "watch.css").read_text()))
    assert len(colours) >= 3
    assert colours <= set(COLOURS)


def test_the_page_fetches_nothing_from_elsewhere() -> None:
    for name in ("watch.html", "watch.js", "watch.css"):
        text = (SOURCE / name).read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.findall(r"https?:|//[a-z]+\.", text), name
    assert "innerHTML" not in (SOURCE / "watch.js").read_text()
