"""The lab's page in a real browser, fed with invented data."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

pytest.importorskip("playwright", reason="pip install playwright")

from playwright.sync_api import Browser, Locator, Page, expect

from tests.lab.browser import TIMEOUT_MS, chromium, watched, window
from tests.lab.fake_lab import PAGE, TOKEN, FakeLab, holder, live, rung, score

expect.set_options(timeout=TIMEOUT_MS)
NOTHING = "\N{EN DASH}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def lab() -> Iterator[FakeLab]:
    with FakeLab() as lab:
        yield lab


@pytest.fixture(scope="module")
def desk(browser: Browser) -> Iterator[Page]:
    with window(browser) as desk:
        yield desk


@pytest.fixture
def page(desk: Page, lab: FakeLab) -> Iterator[Page]:
    with watched(desk) as page:
        yield page


def row(page: Page, scenario: str) -> Locator:
    return page.locator(f'tr[data-scenario="{scenario}"]')


def opened(page: Page, name: str) -> Locator:
    page.locator(f'[data-rung="{name}"] .opener').click()
    return page.locator(f"#rung-{name}")


# -- the scoreboard


def test_rung_that_has_not_run_shows_dashes_and_expected_verdict(page: Page, lab: FakeLab) -> None:
    page.goto(lab.url)
    expect(row(page, "lua/slow").locator(".sold")).to_have_text(NOTHING)
    expect(row(page, "lua/slow").locator(".latency")).to_have_text(NOTHING)
    expect(row(page, "lua/slow").locator(".outcome")).to_contain_text("expected: oversold")


def test_score_fills_row_with_formatted_numbers(page: Page, lab: FakeLab) -> None:
    page.goto(lab.url)
    expect(row(page, "lua/slow")).to_be_visible()
    lab.send("score", score("lua/slow"))
    lua = row(page, "lua/slow")
    expect(lua.locator(".sold")).to_have_text("149")
    expect(lua.locator(".oversold")).to_have_text("49")
    expect(lua.locator(".oversold")).to_have_css("color", "rgb(179, 33, 27)")
    expect(lua.locator(".stuck")).to_have_text("1.02 s")
    expect(lua.locator(".rate")).to_have_text("121 /s")
    expect(lua.locator(".latency")).to_have_text("71 ms / 1.21 s")
    expect(lua.locator(".outcome")).to_have_text("✕ oversoldas expected")


def test_broken_promise_is_highlighted(page: Page, lab: FakeLab) -> None:
    lab.state["scores"] = {"fenced/slow": score("fenced/slow", expect="safe", must_be_safe=True, as_expected=False)}
    page.goto(lab.url)
    expect(row(page, "fenced/slow").locator("[data-broken]")).to_have_text("broken promise")


def test_running_scenario_is_marked_and_updated(page: Page, lab: FakeLab) -> None:
    lab.state["live"] = live("lua/slow", holders=[holder("o1", "w1", 0.0, 0.1, end="open")])
    page.goto(lab.url)
    lua = row(page, "lua/slow")
    expect(lua).to_have_attribute("aria-current", "true")
    panel = page.locator("#panel")
    expect(panel.get_by_role("heading")).to_have_text("1 · The lua lock")
    news = {"t": 0.5, "progress": 0.4, "sold": 31, "oversold": 0, "overlaps": [[0.2, 0.5]], "stock_line": [[0.4, 69]]}
    held = [holder("o2", "w2", 0.2, 0.3, overlap=True)]
    lab.send(
        "live", live("lua/slow", **news, holders=held, open=[holder("o1", "w1", 0.0, 0.5, end="open", overlap=True)])
    )
    expect(lua.locator(".sold")).to_have_text("31")
    expect(panel.locator(".figures .sold dd")).to_have_text("31")
    expect(panel.locator("svg")).to_have_attribute("aria-label", re.compile("2 holdings by 3 workers, two or more"))
    assert lua.locator("progress").evaluate("bar => bar.value") == pytest.approx(0.4)


def test_message_about_another_scenario_is_ignored(page: Page, lab: FakeLab) -> None:
    lab.state["live"] = live("lua/slow")
    page.goto(lab.url)
    expect(row(page, "lua/slow")).to_have_attribute("aria-current", "true")
    lab.send("live", live("fenced/slow", sold=77, open=[]))
    lab.send("live", live("lua/slow", sold=2, open=[]))
    expect(row(page, "lua/slow").locator(".sold")).to_have_text("2")
    expect(row(page, "fenced/slow").locator(".sold")).to_have_text(NOTHING)


def test_changed_scenarios_are_not_judged(page: Page, lab: FakeLab) -> None:
    lab.state["scores"] = {"lua/slow": score("lua/slow")}
    page.goto(lab.url)
    drawer = opened(page, "lua")
    for facts, remark in (
        ({"free": True}, "free sale"),
        ({"injected": True}, "with your faults"),
        ({"free": True, "stopped": True}, "free sale, stopped"),
    ):
        lab.change(live=live("lua/slow", **facts))
        expect(row(page, "lua/slow").locator(".outcome")).to_have_text(f"running{remark}")
        lab.send("score", score("lua/slow", sold=7, oversold=0, verdict="safe", as_expected=False, **facts))
        # The scoreboard keeps the scenario's own score. The panel and the details show the last run.
        expect(row(page, "lua/slow").locator(".outcome")).to_have_text("✕ oversoldas expected")
        expect(row(page, "lua/slow").locator(".sold")).to_have_text("149")
        expect(drawer.locator(".verdict")).to_have_text(f"✓ safe{remark}")
        expect(page.locator("#panel .sold dd")).to_have_text("7")
    expect(page.locator("[data-broken]")).to_have_count(0)
    lab.send("score", score("lua/slow", sold=150))
    expect(drawer.locator(".verdict")).to_have_text("✕ oversoldas expected")
    expect(row(page, "lua/slow").locator(".sold")).to_have_text("150")


# -- a rung


def test_overlaps_and_stale_writes_are_red(page: Page, lab: FakeLab) -> None:
    lab.state["scores"] = {"lua/slow": score("lua/slow")}
    page.goto(lab.url)
    picture = opened(page, "lua").locator("svg")
    expect(picture.locator(".bar.overlap")).to_have_css("fill", "rgb(214, 50, 42)")
    assert len(re.findall("M", picture.locator(".bar.overlap").get_attribute("d") or "")) == 2  # a part of each holding
    assert len(re.findall("M", picture.locator(".band").get_attribute("d") or "")) == 1
    assert len(re.findall("M", picture.locator(".up").get_attribute("d") or "")) == 1
    expect(picture.locator(".up")).to_have_css("stroke", "rgb(214, 50, 42)")
    expect(picture.locator(".flags")).to_contain_text("w1 is paused")


def test_rung_opens_by_keyboard(page: Page, lab: FakeLab) -> None:
    lab.state["scores"] = {"lua/slow": score("lua/slow", evidence=["o1 slept"])}
    page.goto(lab.url)
    opener = page.get_by_role("button", name="The lua lock", exact=True)
    opener.focus()
    page.keyboard.press("Enter")
    expect(opener).to_have_attribute("aria-expanded", "true")
    drawer = page.locator("#rung-lua")
    expect(drawer.locator(".story")).to_contain_text("But it broke.")
    expect(drawer.locator(".story code")).to_have_text("fast")
    expect(drawer.locator(".evidence")).to_have_text("o1 slept.")
    expect(drawer.locator("pre")).to_have_text("class Lock(Rung):\n    pass  # nothing\n")
    expect(drawer).to_contain_text("an order is held up")
    drawer.locator("svg").focus()
    page.keyboard.press("ArrowRight")
    expect(drawer.locator(".tip")).to_contain_text("w1: o1, 1.91 s, overlaps")
    page.keyboard.press("Escape")
    expect(drawer.locator(".tip")).to_be_hidden()
    opener.press("Enter")
    expect(drawer).to_be_hidden()


def test_pointer_shows_details(page: Page, lab: FakeLab) -> None:
    lab.state["scores"] = {"lua/slow": score("lua/slow")}
    page.goto(lab.url)
    drawer = opened(page, "lua")
    drawer.locator("svg").scroll_into_view_if_needed()
    drawer.locator("svg").hover(position={"x": 45, "y": 40})
    expect(drawer.locator(".tip")).to_contain_text("stock 100")


def test_thousands_of_holdings_need_few_elements(page: Page, lab: FakeLab) -> None:
    many = [holder(f"o{i}", f"w{i % 3 + 1}", i / 100, i / 100 + 0.006) for i in range(3000)]
    line = [[i / 100, 3000 - i] for i in range(3000)]
    lab.state["scores"] = {"lua/slow": score("lua/slow", holders=many, stock_line=line, seconds=30.0, overlaps=[])}
    page.goto(lab.url)
    picture = opened(page, "lua").locator("svg")
    expect(picture).to_have_attribute("aria-label", re.compile("3,000 holdings by 3 workers, never two at once"))
    assert picture.locator("*").count() < 100


def test_data_becomes_text_and_missing_fields_are_tolerated(page: Page, lab: FakeLab) -> None:
    evil = "<img src=x onerror=document.title='hurt'>"
    story = rung("lua", 1, title=evil, story=evil, source=evil, new_field=[1])
    empty: dict[str, list[object]] = {name: [] for name in ("holders", "overlaps", "stock_line", "marks")}
    lab.state["rungs"] = [
        story,
        {"name": "bare", "number": 2, "scenarios": [{"name": "bare/scenario", "expect": "safe"}]},
    ]
    scores = {"lua/slow": score("lua/slow", evidence=[evil], marks=[{"t": 0.1, "text": evil}])}
    lab.state["scores"] = {
        **scores,
        "bare/scenario": {"scenario": "bare/scenario", "verdict": "odd", "stock": 100, "seconds": 0, **empty},
    }
    page.goto(lab.url)
    drawer = opened(page, "lua")
    expect(drawer.locator(".evidence")).to_have_text(f"{evil}.")
    expect(drawer.locator("pre")).to_have_text(evil)
    assert page.locator("img").count() == 0
    expect(opened(page, "bare").locator("svg")).to_be_visible()
    expect(row(page, "bare/scenario").locator(".sold")).to_have_text(NOTHING)


# -- buttons


def test_buttons_send_token_and_address_hides_it(page: Page, lab: FakeLab) -> None:
    page.goto(lab.url)
    page.get_by_role("button", name="Run rung 1: The lua lock").click()
    page.get_by_role("button", name="Run the whole ladder").click()
    drawer = opened(page, "lua")
    assert TOKEN not in page.url
    page.reload()  # the rung in the address is open again, and the token is remembered
    drawer.get_by_role("button", name="Run this scenario").click()
    drawer.get_by_role("button", name="Free sale").click()
    expect(drawer.get_by_role("button", name="Free sale")).to_be_enabled()
    bodies = [{"rung": "lua"}, {"rung": "all"}, {"scenario": "lua/slow"}, {"scenario": "lua/slow", "free": True}]
    assert lab.posts == [("/api/run", TOKEN, body) for body in bodies]


def test_buttons_are_enabled_only_when_possible(page: Page, lab: FakeLab) -> None:
    page.goto(lab.url)
    run, stop = (
        page.get_by_role("button", name="Run rung 1: The lua lock"),
        page.get_by_role("button", name="Stop the run"),
    )
    kill, resume = page.get_by_role("button", name="Kill holder"), page.get_by_role("button", name="Resume")
    expect(run).to_be_enabled()
    for button in (stop, kill, resume):
        expect(button).to_be_disabled()
    asleep = [{"name": "w1", "pid": 1, "state": "paused", "holding": "o1"}]
    lab.change(live=live("lua/slow"), workers=asleep)
    expect(run).to_be_disabled()
    for button in (kill, resume, stop):
        button.click()
        expect(button).to_be_enabled()
    sent = [("/api/holder", {"do": "kill"}), ("/api/holder", {"do": "resume"}), ("/api/stop", {})]
    assert [(path, body) for path, _, body in lab.posts] == sent


def test_node_buttons_follow_its_state(page: Page, lab: FakeLab) -> None:
    lab.state["nodes"] = [{"name": "n1", "state": "up"}, {"name": "n2", "state": "down"}]
    page.goto(lab.url)
    for name in ("Kill n1", "Cut off n1", "Restart empty n1", "Start n2"):
        page.get_by_role("button", name=name).click()
        expect(page.get_by_role("button", name=name)).to_be_enabled()
    expect(page.get_by_role("button", name="Cut off n2")).to_be_disabled()
    lab.change(nodes=[{"name": "n1", "state": "partitioned"}])
    page.get_by_role("button", name="Reconnect n1").click()
    expect(page.get_by_role("button", name="Reconnect n1")).to_be_enabled()
    done = [("n1", "kill"), ("n1", "partition"), ("n1", "restart_empty"), ("n2", "start"), ("n1", "heal")]
    assert [body for _, _, body in lab.posts] == [{"node": node, "do": what} for node, what in done]


def test_refusal_is_shown(page: Page, lab: FakeLab) -> None:
    lab.refusal = (409, "a sale is running: stop it first")
    page.goto(lab.url)
    page.get_by_role("button", name="Run the whole ladder").click()
    expect(page.get_by_role("alert")).to_have_text("a sale is running: stop it first")
    expect(page.get_by_role("button", name="Run the whole ladder")).to_be_enabled()


def test_read_only_lab_has_no_action_buttons(page: Page, lab: FakeLab) -> None:
    lab.state.update(interactive=False, live=live("lua/slow"), nodes=[{"name": "n1", "state": "up"}])
    page.goto(lab.url)
    expect(page.locator("#panel")).to_contain_text("Read-only")
    opened(page, "lua")
    assert page.locator("[data-post]:enabled").count() == 0
    assert page.locator("[data-post]:visible").count() == 0


def test_page_without_token_explains_disabled_buttons(page: Page, lab: FakeLab) -> None:
    page.goto(lab.url.partition("?")[0])
    expect(page.locator("#panel")).to_contain_text("open the address that the lab printed")
    assert page.locator("[data-post]:enabled").count() == 0


# -- the stream, the window


def test_page_shows_end_of_lab_and_reconnects(page: Page, lab: FakeLab) -> None:
    page.goto(lab.url)
    expect(page.locator("#connection")).to_have_text("Connected")
    page.route("**/api/events", lambda route: route.abort())
    lab.hang_up()
    expect(page.locator("#connection")).to_contain_text("The lab has ended")
    expect(page.get_by_role("button", name="Run the whole ladder")).to_be_disabled()
    lab.state["rungs"] = [rung("another", 1)]
    page.unroute("**/api/events")
    expect(page.locator("#connection")).to_have_text("Connected")
    expect(row(page, "another/slow")).to_be_visible()
    expect(row(page, "lua/slow")).to_have_count(0)


def test_page_never_scrolls_sideways(browser: Browser, lab: FakeLab) -> None:
    long = "o1 waited " + "verylongword" * 20
    marks = [{"t": i / 10, "text": f"{long} {i}"} for i in range(20)]
    lab.state["rungs"] = [rung("lua", 1, title=long, source="x = 1  # " + "wide" * 100), rung("fenced", 2, "safe")]
    lab.state["scores"] = {"lua/slow": score("lua/slow", evidence=[long], marks=marks, sold=123456, p50=99.5, p99=123.4)}
    lab.state["nodes"] = [{"name": f"n{i}", "state": "partitioned"} for i in range(1, 6)]
    lab.state["live"] = live("fenced/slow", marks=marks, sold=123456, t=123.4)
    with window(browser, 360, 740, "dark") as phone, watched(phone) as page:
        page.goto(lab.url)
        for name in ("lua", "fenced"):
            expect(opened(page, name)).to_be_visible()
        for width in (1280, 981, 980, 640, 360):
            page.set_viewport_size({"width": width, "height": 740})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        # No element is cut off at the side. Code and timelines scroll or clip by themselves.
        others = page.locator("header, main :not(pre, pre *, .canvas, .canvas *, thead, thead *)")
        cut = "all => all.filter(e => e.clientWidth && e.scrollWidth > e.clientWidth + 1).map(e => e.className)"
        assert others.evaluate_all(cut) == []


IN_VIEW = """element => {
  const { top, bottom, left, right } = element.getBoundingClientRect();
  const over = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
  return top >= 0 && bottom <= innerHeight && (element === over || element.contains(over));
}"""


@pytest.mark.parametrize("size", [(1440, 900), (390, 844)])
def test_timeline_and_buttons_stay_in_view_during_run(browser: Browser, lab: FakeLab, size: tuple[int, int]) -> None:
    lab.state["rungs"] = [rung(f"lock{number}", number) for number in range(1, 15)]
    lab.state["nodes"] = [{"name": f"n{number}", "state": "up"} for number in range(1, 6)]
    with window(browser, *size) as other, watched(other) as page:
        page.goto(lab.url)
        row(page, "lock14/slow").scroll_into_view_if_needed()
        shown = [
            page.locator("#panel h2"),
            page.locator("#panel svg"),
            page.get_by_role("button", name="Kill holder"),
            page.get_by_role("button", name="Stop the run"),
            page.get_by_role("button", name="Restart empty n1"),
        ]
        assert not shown[2].evaluate(IN_VIEW)
        lab.change(live=live("lock14/slow", marks=[{"t": i / 100, "text": f"event {i}"} for i in range(20)]))
        expect(page.locator("#panel svg")).to_be_visible()
        assert [each.evaluate(IN_VIEW) for each in shown] == [True] * len(shown)
        lab.send("score", score("lock14/slow"))
        expect(page.locator("#panel .kicker")).to_have_text("Last run")
        assert shown[1].evaluate(IN_VIEW)  # the result stays until the viewer uses the rest of the page
        page.mouse.move(size[0] / 2, size[1] - 10)
        page.mouse.wheel(0, 1)
        expect(page.locator("#panel")).not_to_have_attribute("data-pinned", "true")


def test_stopped_sale_stays_on_page(page: Page, lab: FakeLab) -> None:
    lab.state["live"] = live("lua/slow", free=True)
    page.goto(lab.url)
    lab.change(live=live("lua/slow", free=True, stopped=True))
    expect(page.locator("#panel .kicker")).to_have_text("Stopping")
    lab.send("score", score("lua/slow", free=True, stopped=True, sold=12))
    lab.change(live=None, unjudged={"lua/slow": score("lua/slow", free=True, stopped=True, sold=12)})
    for _ in range(2):
        expect(page.locator("#panel .kicker")).to_have_text("Stopped")
        expect(page.locator("#panel .sold dd")).to_have_text("12")
        expect(page.locator("#panel .marks")).to_contain_text("w1 is paused")
        # A sale that was stopped before it began leaves no score: the panel returns to the one before.
        lab.change(live=live("fenced/slow"))
        expect(page.locator("#panel .kicker")).to_have_text("Running")
        lab.change(live=None)


def test_phone_shows_all_events_and_short_rows_for_rungs_that_have_not_run(browser: Browser, lab: FakeLab) -> None:
    marks = [{"t": i / 10, "text": f"event {i} of an order that waits for its lock"} for i in range(20)]
    lab.state["live"] = live("lua/slow", marks=marks)
    with window(browser, 390, 844) as phone, watched(phone) as page:
        page.goto(lab.url)
        events = page.locator("#events .marks")
        expect(events.locator("li")).to_have_count(20)
        assert events.evaluate("list => list.scrollHeight <= list.clientHeight && getComputedStyle(list).overflow") == (
            "visible"
        )
        expect(page.locator("#events")).to_contain_text("o1 (w1) is the order o1, which the worker process w1 serves")
        empty = row(page, "fenced/slow")
        expect(empty.locator(".sold")).to_be_hidden()
        assert (empty.bounding_box() or {})["height"] < 100 < (row(page, "lua/slow").bounding_box() or {})["height"]
        page.set_viewport_size({"width": 1440, "height": 900})
        expect(page.locator("#panel .picture .marks li")).to_have_count(20)
        expect(empty.locator(".sold")).to_be_visible()


def test_text_contrast_in_light_and_dark() -> None:
    light, dark = (PAGE / "style.css").read_text().split("@media (prefers-color-scheme: dark)")
    pairs = [(text, ground) for text in ("ink", "soft") for ground in ("ground", "card", "sunk", "running")]
    pairs += [("accent", ground) for ground in ("ground", "card", "sunk")] + [("good", "sunk"), ("bad", "running")]
    pairs += [(name, f"{name}-ground") for name in ("bad", "good", "warn")] + [("bad", "card"), ("warn", "ground")]
    pairs += [("accent-ink", "accent"), ("card", "soft"), ("ground", "ink")]
    for sheet in (light, dark):
        colours = dict(reversed(re.findall(r"--([\w-]+): (#\w{6});", sheet)))
        assert [pair for pair in pairs if _contrast(*(colours[name] for name in pair)) < 4.5] == []


def _contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)
