"""The lab's page in a real browser, fed with invented data."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

pytest.importorskip("playwright", reason="pip install playwright")

from playwright.sync_api import Browser, Locator, Page, expect

from tests.lab.browser import PATIENCE, chromium, watched, window
from tests.lab.fake_lab import PAGE, TOKEN, FakeLab, holder, live, rung, score

expect.set_options(timeout=PATIENCE)
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


def test_a_rung_that_was_not_run_has_dashes_and_what_is_expected(page: Page, lab: FakeLab) -> None:
    page.goto(lab.url)
    expect(row(page, "lua/slow").locator(".sold")).to_have_text(NOTHING)
    expect(row(page, "lua/slow").locator(".latency")).to_have_text(NOTHING)
    expect(row(page, "lua/slow").locator(".outcome")).to_contain_text("expected: oversold")


def test_a_score_fills_its_row_with_readable_numbers(page: Page, lab: FakeLab) -> None:
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


def test_a_broken_promise_is_said_loudly(page: Page, lab: FakeLab) -> None:
    lab.state["scores"] = {"fenced/slow": score("fenced/slow", expect="safe", must_be_safe=True, as_expected=False)}
    page.goto(lab.url)
    expect(row(page, "fenced/slow").locator("[data-broken]")).to_have_text("a promise is broken")


def test_the_running_act_is_marked_and_grows_with_each_message(page: Page, lab: FakeLab) -> None:
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


def test_a_message_about_another_act_is_ignored(page: Page, lab: FakeLab) -> None:
    lab.state["live"] = live("lua/slow")
    page.goto(lab.url)
    expect(row(page, "lua/slow")).to_have_attribute("aria-current", "true")
    lab.send("live", live("fenced/slow", sold=77, open=[]))
    lab.send("live", live("lua/slow", sold=2, open=[]))
    expect(row(page, "lua/slow").locator(".sold")).to_have_text("2")
    expect(row(page, "fenced/slow").locator(".sold")).to_have_text(NOTHING)


def test_a_free_sale_is_not_measured_by_the_story(page: Page, lab: FakeLab) -> None:
    lab.state["scores"] = {"lua/slow": score("lua/slow")}
    page.goto(lab.url)
    drawer = opened(page, "lua")
    for facts, remark in (({"free": True}, "free sale"), ({"struck": True}, "with faults of yours")):
        lab.change(live=live("lua/slow", **facts))
        expect(row(page, "lua/slow").locator(".outcome")).to_have_text(f"running{remark}")
        lab.send("score", score("lua/slow", sold=7, oversold=0, verdict="safe", as_expected=False, **facts))
        # The scoreboard keeps what the scenario itself did; what ran last is looked at below.
        expect(row(page, "lua/slow").locator(".outcome")).to_have_text("✕ oversoldas expected")
        expect(row(page, "lua/slow").locator(".sold")).to_have_text("149")
        expect(drawer.locator(".verdict")).to_have_text(f"✓ safe{remark}")
        expect(page.locator("#panel .sold dd")).to_have_text("7")
    expect(page.locator("[data-broken]")).to_have_count(0)
    lab.send("score", score("lua/slow", sold=150))
    expect(drawer.locator(".verdict")).to_have_text("✕ oversoldas expected")
    expect(row(page, "lua/slow").locator(".sold")).to_have_text("150")


# -- a rung


def test_overlaps_and_stale_writes_are_drawn_in_red(page: Page, lab: FakeLab) -> None:
    lab.state["scores"] = {"lua/slow": score("lua/slow")}
    page.goto(lab.url)
    picture = opened(page, "lua").locator("svg")
    expect(picture.locator(".bar.overlap")).to_have_css("fill", "rgb(214, 50, 42)")
    assert len(re.findall("M", picture.locator(".bar.overlap").get_attribute("d") or "")) == 2  # a part of each holding
    assert len(re.findall("M", picture.locator(".band").get_attribute("d") or "")) == 1
    assert len(re.findall("M", picture.locator(".up").get_attribute("d") or "")) == 1
    expect(picture.locator(".up")).to_have_css("stroke", "rgb(214, 50, 42)")
    expect(picture.locator(".flags")).to_contain_text("w1 is paused")


def test_a_rung_is_opened_and_read_by_keyboard(page: Page, lab: FakeLab) -> None:
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
    expect(drawer.locator(".tip")).to_contain_text("w1: o1, 1.91 s, not alone")
    page.keyboard.press("Escape")
    expect(drawer.locator(".tip")).to_be_hidden()
    opener.press("Enter")
    expect(drawer).to_be_hidden()


def test_a_pointer_asks_for_details(page: Page, lab: FakeLab) -> None:
    lab.state["scores"] = {"lua/slow": score("lua/slow")}
    page.goto(lab.url)
    drawer = opened(page, "lua")
    drawer.locator("svg").scroll_into_view_if_needed()
    drawer.locator("svg").hover(position={"x": 45, "y": 40})
    expect(drawer.locator(".tip")).to_contain_text("stock 100")


def test_thousands_of_holdings_are_few_elements(page: Page, lab: FakeLab) -> None:
    many = [holder(f"o{i}", f"w{i % 3 + 1}", i / 100, i / 100 + 0.006) for i in range(3000)]
    line = [[i / 100, 3000 - i] for i in range(3000)]
    lab.state["scores"] = {"lua/slow": score("lua/slow", holders=many, stock_line=line, seconds=30.0, overlaps=[])}
    page.goto(lab.url)
    picture = opened(page, "lua").locator("svg")
    expect(picture).to_have_attribute("aria-label", re.compile("3,000 holdings by 3 workers, never two at once"))
    assert picture.locator("*").count() < 100


def test_what_comes_from_the_lab_is_text_and_what_is_unknown_or_empty_does_no_harm(page: Page, lab: FakeLab) -> None:
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


def test_buttons_send_the_token_which_is_not_in_the_visible_address(page: Page, lab: FakeLab) -> None:
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


def test_buttons_are_there_for_what_is_possible_now(page: Page, lab: FakeLab) -> None:
    page.goto(lab.url)
    run, stop = (
        page.get_by_role("button", name="Run rung 1: The lua lock"),
        page.get_by_role("button", name="Stop", exact=True),
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


def test_a_nodes_buttons_follow_its_state(page: Page, lab: FakeLab) -> None:
    lab.state["nodes"] = [{"name": "n1", "state": "up"}, {"name": "n2", "state": "stopped"}]
    page.goto(lab.url)
    for name in ("Stop n1", "Cut off n1", "Restart empty n1", "Start n2"):
        page.get_by_role("button", name=name).click()
        expect(page.get_by_role("button", name=name)).to_be_enabled()
    expect(page.get_by_role("button", name="Cut off n2")).to_be_disabled()
    lab.change(nodes=[{"name": "n1", "state": "partitioned"}])
    page.get_by_role("button", name="Heal n1").click()
    expect(page.get_by_role("button", name="Heal n1")).to_be_enabled()
    done = [("n1", "stop"), ("n1", "partition"), ("n1", "restart_empty"), ("n2", "start"), ("n1", "heal")]
    assert [body for _, _, body in lab.posts] == [{"node": node, "do": what} for node, what in done]


def test_a_refusal_is_shown_in_the_labs_own_words(page: Page, lab: FakeLab) -> None:
    lab.refusal = (409, "something runs already: stop it first")
    page.goto(lab.url)
    page.get_by_role("button", name="Run the whole ladder").click()
    expect(page.get_by_role("alert")).to_have_text("something runs already: stop it first")
    expect(page.get_by_role("button", name="Run the whole ladder")).to_be_enabled()


def test_a_read_only_lab_has_no_buttons_that_do_something(page: Page, lab: FakeLab) -> None:
    lab.state.update(interactive=False, live=live("lua/slow"), nodes=[{"name": "n1", "state": "up"}])
    page.goto(lab.url)
    expect(page.locator("#panel")).to_contain_text("Read-only")
    opened(page, "lua")
    assert page.locator("[data-post]:enabled").count() == 0
    assert page.locator("[data-post]:visible").count() == 0


def test_without_the_token_the_page_says_why_its_buttons_are_off(page: Page, lab: FakeLab) -> None:
    page.goto(lab.url.partition("?")[0])
    expect(page.locator("#panel")).to_contain_text("open the address that the lab printed")
    assert page.locator("[data-post]:enabled").count() == 0


# -- the stream, the window


def test_the_end_of_the_lab_is_said_and_a_lab_that_is_back_is_found(page: Page, lab: FakeLab) -> None:
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


def test_no_window_scrolls_sideways(browser: Browser, lab: FakeLab) -> None:
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
        # Nor is anything cut off at the side, but for code and pictures, which have their own ways.
        others = page.locator("header, main :not(pre, pre *, .canvas, .canvas *, thead, thead *)")
        cut = "all => all.filter(e => e.clientWidth && e.scrollWidth > e.clientWidth + 1).map(e => e.className)"
        assert others.evaluate_all(cut) == []


def test_text_can_be_read_on_its_ground_in_light_and_dark() -> None:
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
