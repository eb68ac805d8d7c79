"""The live page in Chromium: the way in, what it shows, both colour schemes, keyboard, names, reconnects."""

from __future__ import annotations

import contextlib
import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ui.local_mesh import KEY, LocalMesh

WIDE = {"width": 1440, "height": 1180}
NARROW = {"width": 390, "height": 844}
PATIENCE = 20_000  # milliseconds; the machine is shared
EXPECTED = re.compile(
    r"status of (401|429)|ERR_CONNECTION_(REFUSED|RESET)|ERR_INCOMPLETE_CHUNKED|ERR_EMPTY_RESPONSE"
)

pytestmark = pytest.mark.timeout(240)


@contextlib.contextmanager
def opened(browser: Any, mesh: LocalMesh, scheme: str = "dark", size: dict[str, int] = WIDE) -> Iterator[Any]:
    """A page of a browser that knows nothing yet; it may say nothing but what the tests bring about."""
    context = browser.new_context(color_scheme=scheme, viewport=size)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on(
        "console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None
    )
    page.goto(f"{mesh.address}/ui")
    try:
        yield page
    finally:
        context.close()
    assert [text for text in said if not EXPECTED.search(text)] == []


@contextlib.contextmanager
def watching(browser: Any, mesh: LocalMesh, **how: Any) -> Iterator[Any]:
    """The same, with the key given and pictures coming."""
    with opened(browser, mesh, **how) as page:
        enter(page, KEY)
        live(page)
        yield page


def enter(page: Any, key: str) -> None:
    page.get_by_label("Admin key").fill(key)
    page.keyboard.press("Enter")


def live(page: Any) -> None:
    page.locator("#link-text", has_text=re.compile("^live$")).wait_for()
    page.locator("#node", has_text="router-0").wait_for()


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


# --- the way in -------------------------------------------------------------------------------------------


def test_a_wrong_key_is_refused_and_the_right_one_is_asked_for_once(browser: Any, mesh: LocalMesh) -> None:
    with opened(browser, mesh) as page:
        page.locator("#door").wait_for()
        assert page.evaluate("document.activeElement.id") == "key"
        enter(page, "not the key")
        alert = page.get_by_role("alert")
        alert.filter(has_text="this is not the admin key").wait_for()
        assert page.locator("#page").is_hidden()
        enter(page, KEY)
        live(page)
        assert KEY not in page.url
        stored = "[document.cookie, JSON.stringify(localStorage), JSON.stringify(sessionStorage)].join()"
        assert page.evaluate(stored) == ",{},{}", "nothing that a script could read"
        page.reload()
        live(page)
        page.get_by_role("button", name="Sign out").click()
        page.locator("#door").wait_for()
        page.reload()
        page.locator("#door").wait_for()


# --- what it shows ----------------------------------------------------------------------------------------


def test_it_shows_what_the_router_says(browser: Any, mesh: LocalMesh) -> None:
    with watching(browser, mesh) as page:
        assert page.locator("#ready").inner_text() == "ready"
        assert page.locator("#worker-rows tr").count() == 5
        workers = page.locator("#worker-rows").inner_text()
        assert all(name in workers for name in ("prefill-0", "prefill-1", "relay-0", "main-0", "main-1"))
        line = page.locator(".line").first
        assert "6.0 Mbit/s" in line.inner_text()
        until(lambda: re.search(r"rate (?!0\.0)[\d.]+ Mbit/s", line.inner_text()))
        until(lambda: page.locator("#running tr").count() > 0)
        until(lambda: page.locator("#ended tr").count() > 0)
        shown = int(page.locator("#tiles .tile dd").first.inner_text())
        assert abs(shown - mesh.state()["requests"]["live"]) <= 5
        assert "100%" not in page.locator("#shares-legend").inner_text() or mesh.state()["pipelines"]


def test_a_request_is_drawn_as_its_time_goes_on(browser: Any, mesh: LocalMesh) -> None:
    with watching(browser, mesh) as page:
        lane = page.locator("#running .lane").last
        lane.wait_for()
        told = lane.get_attribute("aria-label")
        assert re.match(r"queue \d+ ms", told)
        until(lambda: page.locator("#running .lane .seg.decode, #running .lane .seg.relay").count() > 0)
        until(lambda: page.locator("#timeline .kv.wan").count() > 0)
        until(
            lambda: page.locator("#running .seg.open").count() > 0 and page.locator("#ended .seg").count() > 0
        )
        page.keyboard.press("p")
        edges = page.evaluate(EDGES)
        assert edges["open"], "something runs"
        assert all(abs(right - edges["now"]) < 4 for right in edges["open"]), "what runs ends now"
        assert all(right <= edges["now"] + 4 for right in edges["ended"])
        page.keyboard.press("p")
        page.wait_for_timeout(1500)
        assert page.evaluate(EDGES)["ended"] != edges["ended"], "what has ended moves away"


EDGES = """() => {
  const right = (one) => one.getBoundingClientRect().right;
  const all = (spots) => [...document.querySelectorAll(spots)].map(right);
  const now = right(document.getElementById("axis"));
  return { now, open: all("#running .seg.open"), ended: all("#ended .seg") };
}"""


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_both_schemes_can_be_read(browser: Any, mesh: LocalMesh, shots: Path, scheme: str) -> None:
    with watching(browser, mesh, scheme=scheme) as page:
        until(lambda: page.locator("#running tr").count() >= 4 and page.locator("#ended tr").count() >= 4, 60)
        page.wait_for_timeout(20_000)  # for charts with something in them
        page.screenshot(path=str(shots / f"live-page-{scheme}.png"))
        back = brightness(page, "body", "backgroundColor")
        assert (back < 0.05) == (scheme == "dark")
        card = brightness(page, ".card", "backgroundColor")
        for spot in (
            "h2",
            ".tile dd",
            "small",
            "#worker-rows td",
            ".role-prefill",
            ".role-relay",
            ".good",
            "th",
        ):
            text = brightness(page, spot, "color")
            assert contrast(text, card) >= (3.0 if spot.startswith(".role") else 4.5), spot
        for kind in ("queue", "prefill", "lan", "wan", "relay", "cut", "decode", "MD", "P-MD", "P-RLD-MD"):
            assert contrast(brightness(page, f".key.{kind}", "backgroundColor"), card) >= 3.0, kind


BRIGHTNESS = """([spot, which]) => {
  const text = getComputedStyle(document.querySelector(spot))[which];
  const parts = text.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
  const [r, g, b] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}"""


def brightness(page: Any, spot: str, which: str) -> float:
    """Relative luminance of a colour of an element (WCAG 2)."""
    return float(page.evaluate(BRIGHTNESS, [spot, which]))


def contrast(one: float, other: float) -> float:
    """WCAG 2's ratio."""
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


def test_a_small_screen_needs_no_sideways_scrolling(browser: Any, mesh: LocalMesh, shots: Path) -> None:
    with watching(browser, mesh, scheme="light", size=NARROW) as page:
        until(lambda: page.locator("#running tr").count() > 0)
        assert page.evaluate("document.scrollingElement.scrollWidth") <= NARROW["width"]
        page.screenshot(path=str(shots / "live-page-narrow.png"), full_page=True)


# --- by hand ----------------------------------------------------------------------------------------------


def test_everything_can_be_done_with_the_keyboard(browser: Any, mesh: LocalMesh) -> None:
    with watching(browser, mesh) as page:
        until(lambda: page.locator("#running tr").count() + page.locator("#ended tr").count() >= 3, 60)
        seen = []
        for _ in range(7):
            page.keyboard.press("Tab")
            seen.append(page.evaluate(WHERE))
        assert seen == ["skip", "pause", "leave", "scroll", "window", "find", "TR"]
        first = focused(page)
        page.keyboard.press("End")
        assert focused(page) != first
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Home")
        page.keyboard.press("Enter")
        page.get_by_role("dialog").wait_for()
        assert "Request" in page.get_by_role("dialog", name=re.compile("Request")).inner_text()
        assert page.locator("#details-stages tr").count() >= 1
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="hidden")
        assert page.evaluate("document.activeElement.tagName") in ("TR", "SECTION"), "back where it was"


WHERE = "(({id, className, tagName}) => id || className || tagName)(document.activeElement)"


def focused(page: Any) -> str:
    return str(page.evaluate("document.activeElement.dataset.id"))


def test_shortcuts_find_and_pause(browser: Any, mesh: LocalMesh) -> None:
    with watching(browser, mesh) as page:
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "find"
        page.keyboard.type("no such request")
        page.locator("#none", has_text="Nothing fits what is sought").wait_for()
        assert page.locator("#running tr").count() == 0
        page.keyboard.press("Escape")
        until(lambda: page.locator("#running tr").count() > 0)
        pause = page.locator("#pause")
        page.keyboard.press("p")
        assert pause.get_attribute("aria-pressed") == "true"
        page.locator("#link-text", has_text="paused").wait_for()
        before = page.locator("#running").inner_text()
        page.wait_for_timeout(1500)
        assert page.locator("#running").inner_text() == before
        page.keyboard.press("p")
        live(page)
        until(lambda: page.locator("#running").inner_text() != before)


def test_every_control_and_drawing_has_a_name(browser: Any, mesh: LocalMesh) -> None:
    with watching(browser, mesh) as page:
        until(lambda: page.locator("#running tr").count() > 0)
        session = page.context.new_cdp_session(page)
        nodes = session.send("Accessibility.getFullAXTree")["nodes"]
        told = [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node.get("ignored") and "role" in node
        ]
        named = {"button", "combobox", "searchbox", "textbox", "image", "img", "table", "region", "link"}
        assert [role for role, name in told if role in named and not name] == []
        roles = [role for role, _ in told]
        assert roles.count("main") == 1
        assert {"button", "combobox", "searchbox", "status", "table", "columnheader"} <= set(roles)


# --- the connection ---------------------------------------------------------------------------------------


def test_a_lost_router_is_said_and_found_again(browser: Any, mesh: LocalMesh, shots: Path) -> None:
    with watching(browser, mesh) as page:
        mesh.kill("router-0")
        status = page.get_by_role("status")
        status.filter(has_text="Connection lost").wait_for()
        assert "lost" in page.locator("#page").get_attribute("class")
        page.screenshot(path=str(shots / "live-page-lost.png"))
        mesh.start("router-0")
        mesh.wait_ready()
        live(page)
        assert page.locator("#door").is_hidden(), "the key is not asked for again"
        assert "lost" not in page.locator("#page").get_attribute("class")


def test_a_viewer_too_many_is_told(browser: Any, mesh: LocalMesh) -> None:
    with opened(browser, mesh) as page:
        page.locator("#door").wait_for()
        with contextlib.ExitStack() as held:
            for _ in range(8):
                headers = {"authorization": f"Bearer {KEY}"}
                request = urllib.request.Request(f"{mesh.address}/ui/events", headers=headers)
                held.enter_context(urllib.request.urlopen(request, timeout=10))
            enter(page, KEY)
            page.get_by_role("status").filter(has_text="8 viewers watch this router").wait_for()
        live(page)


def test_a_thousand_requests_are_counted_and_a_hundred_drawn(
    browser: Any, mesh: LocalMesh, shots: Path
) -> None:
    state = until(lambda: (found := mesh.state())["requests"]["rows"] and found)
    row = state["requests"]["rows"][0]
    rows = [{**row, "id": f"4d.{number}", "age_ms": row["age_ms"] + 7 * number} for number in range(100)]
    state["requests"] |= {"live": 1000, "waiting": 900, "oldest_wait_ms": 2500.0, "rows": rows}
    body = f"event: picture\ndata: {json.dumps(state)}\n\n"
    with watching(browser, mesh) as page:
        page.route("**/ui/events", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
        page.reload()
        count = page.locator("#requests-count", has_text="1,000 running, 900 of them for room")
        count.wait_for()
        assert "the 100 oldest are shown, 900 newer ones are not" in count.inner_text()
        assert page.locator("#running tr").count() == 100
        assert min(page.evaluate(DRAW) for _ in range(20)) < 250, "milliseconds to draw it anew"
        page.screenshot(path=str(shots / "live-page-thousand.png"))


DRAW = """async () => {
  const find = document.getElementById("find");
  const began = performance.now();
  find.dispatchEvent(new Event("input"));
  return performance.now() - began;
}"""
