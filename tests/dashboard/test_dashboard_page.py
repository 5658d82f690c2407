"""The dashboard in a real browser, while servers die and return and names are hostile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("playwright", reason="pip install playwright")

from playwright.sync_api import Browser, Page, expect

import handfast
from handfast.testing import Server, Servers
from tests.dashboard.running import running
from tests.lab.browser import chromium, watched, window

expect.set_options(timeout=30_000)  # milliseconds; the machine may be busy
HOSTILE = '<script>document.title="owned"</script><img src=x onerror="document.title=1">'
TURNED = "invoice\u202egnp.exe\n\x07"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as each:
        yield each


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with window(browser, 1440, 1000) as page, watched(page):
        yield page


def test_lock_is_seen_from_its_acquisition_to_its_release(page: Page, one: Server, client: handfast.Client) -> None:
    with running(one.url) as dashboard:
        page.goto(dashboard.url)
        expect(page.locator("#connection")).to_have_text("Live")
        expect(page.locator("#empty")).to_have_text("Nobody holds a lock.")
        with client.lock("orders:42", ttl=20):
            line = page.locator("#rows tr")
            expect(line.locator("a.name")).to_have_text("orders:42")
            expect(line.locator(".votes i")).to_have_attribute("data-vote", "y")
            expect(line.locator(".bar .left")).to_have_text(re.compile(r"^1\d\.\d s$"))
            expect(page.locator("#held")).to_have_text("1")
            expect(page.locator("#tape li").first).to_contain_text("acquired")
        expect(page.locator("#rows tr")).to_have_count(0)
        expect(page.locator("#tape li").first).to_contain_text("released")
        expect(page.locator(".node .sign").first).to_have_attribute("data-level", re.compile("ok|warn"))
        page.locator(".node summary").first.click()
        expect(page.locator(".node li", has_text="latency")).to_be_visible()


def test_server_is_killed_and_returns_while_the_page_is_open(page: Page, three: Servers) -> None:
    url = three[2].url
    # The quarantine lasts as long as max_ttl: longer than the pause between two examinations.
    with handfast.connect(three.urls, max_ttl=12) as client:
        handfast.bootstrap(client)
        with running(three.urls) as dashboard, client.lock("orders", ttl=1):
            page.goto(dashboard.url)
            votes = page.locator("#rows .votes i")
            expect(votes).to_have_count(3)
            expect(votes.nth(2)).to_have_attribute("data-vote", "y")
            three[2].kill()
            expect(votes.nth(2)).to_have_attribute("data-vote", "e")
            expect(page.locator("#banner")).to_contain_text(url)
            expect(page.locator(f'.node[data-node="{url}"]')).to_have_attribute("data-level", "bad")
            expect(page.locator('#tape [data-kind="node down"]')).to_contain_text(url)
            expect(page.locator("#held")).to_have_text("1")
            three[2].restart()
            expect(votes.nth(2)).to_have_attribute("data-vote", "y")
            expect(page.locator("#banner")).to_be_hidden()
            expect(page.locator('#tape [data-kind="node up"]')).to_contain_text(url)
            expect(page.locator('#tape [data-kind="quarantined"]')).to_contain_text(url)


def test_everything_gone_is_said_and_nothing_is_forgotten(page: Page) -> None:
    with Server() as own, handfast.connect(own.url) as client, running(own.url) as dashboard:
        page.goto(dashboard.url)
        lease = client.lock("orders", ttl=30).acquire()
        expect(page.locator("#held")).to_have_text("1")
        own.pause()
        expect(page.locator("#banner")).to_contain_text("Too few nodes answer")
        expect(page.locator("#rows a.name")).to_have_text("orders")
        own.resume()
        expect(page.locator("#banner")).to_be_hidden()
        lease.release()
        expect(page.locator("#held")).to_have_text("0")


def test_page_outlives_the_dashboard(page: Page, one: Server, client: handfast.Client) -> None:
    with client.lock("orders", ttl=30):
        with running(one.url) as dashboard:
            port = dashboard._port
            page.goto(dashboard.url)
            expect(page.locator("#connection")).to_have_text("Live")
        expect(page.locator("#connection")).to_contain_text("does not answer")
        expect(page.locator("#rows a.name")).to_have_text("orders")
        with running(one.url, port=port):
            expect(page.locator("#connection")).to_have_text("Live")
            # The watched page is emptied before the dashboard ends.
            page.goto(f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize("name", [HOSTILE, TURNED], ids=["markup", "turned"])
def test_hostile_names_and_owners_are_text(page: Page, one: Server, name: str) -> None:
    shown = name.replace("\u202e", "\\u{202e}").replace("\n", "\\u{a}").replace("\x07", "\\u{7}")
    with running(one.url) as dashboard:
        page.goto(dashboard.url)
        expect(page.locator("#connection")).to_have_text("Live")
        one.command("SET", f"handfast:{{{name}}}", name, "PX", 60_000)
        expect(page.locator("#rows a.name")).to_have_text(shown)
        expect(page.locator("#rows .owner")).to_have_text(shown)
        expect(page.locator("#tape li .name").first).to_have_text(shown)
        page.locator("#rows a.name").click()
        expect(page.locator("#lock h2")).to_have_text(shown)
        expect(page.locator("#lock")).to_contain_text(f"by {shown}")
        assert page.locator("main script, main img").count() == 0
        expect(page).to_have_title("handfast dashboard")


def test_scripts_that_get_into_the_page_do_not_run(browser: Browser, one: Server) -> None:
    """The policy is a second protection behind the escaping: markup that is forced into the page does nothing."""
    with window(browser) as page, running(one.url) as dashboard:
        page.goto(dashboard.url)
        refused: list[str] = []
        page.on("console", lambda message: refused.append(message.text))
        page.evaluate("html => document.body.insertAdjacentHTML('beforeend', html)", HOSTILE)
        page.evaluate("""() => {
            const script = document.createElement("script");
            script.textContent = 'document.title = "owned"';
            document.body.append(script);
        }""")
        expect(page).to_have_title("handfast dashboard")
        assert any("Content Security Policy" in text for text in refused)


def test_many_locks_are_paged_searched_and_sorted(page: Page, one: Server) -> None:
    with one.connect() as link:
        for i in range(3000):
            link.command("SET", f"handfast:{{orders:{i:04}}}", f"host:{i}:label:" + 32 * "a", "PX", 100_000 + i * 1000)
    with running(one.url) as dashboard:
        page.goto(dashboard.url)
        expect(page.locator("#held")).to_have_text("3,000")
        expect(page.locator("#rows tr")).to_have_count(50)
        expect(page.locator("#range")).to_have_text("1 to 50 of 3,000")
        page.get_by_role("button", name="Next").click()
        expect(page.locator("#rows a.name").first).to_have_text("orders:0050")
        page.get_by_role("button", name="Name").click()
        page.get_by_role("button", name="Name").click()
        expect(page.locator("#rows a.name").first).to_have_text("orders:2999")
        page.get_by_role("button", name="Time left").click()
        expect(page.locator("#rows a.name").first).to_have_text("orders:0000")
        page.locator("#search").fill("orders:17")
        expect(page.locator("#range")).to_have_text("1 to 50 of 100")
        page.locator("#search").fill("host:2718")
        expect(page.locator("#rows a.name")).to_have_text("orders:2718")
        page.locator("#search").fill("nothing like that")
        expect(page.locator("#empty")).to_have_text("No lock matches.")


def test_page_of_a_lock(page: Page, one: Server, client: handfast.Client) -> None:
    with (
        running(one.url) as dashboard,
        handfast.connect(one.url, label="nightly") as other,
        ThreadPoolExecutor(1) as pool,
    ):
        page.goto(dashboard.url)
        first = client.lock("orders").acquire()
        expect(page.locator("#held")).to_have_text("1")
        waiting = pool.submit(other.lock("orders", wait=60).acquire)
        expect(page.locator("#waiting")).to_have_text("1")
        page.locator("#rows a.name").click()
        expect(page.locator("#lock section", has_text="Waiting")).to_contain_text("nightly")
        first.release()
        holders = page.locator("#lock section", has_text="Recent holders").locator("tbody tr")
        expect(holders).to_have_count(2)
        second = waiting.result()
        expect(holders.nth(0)).to_contain_text(str(second.token))
        expect(holders.nth(0)).to_contain_text("holds it")
        expect(holders.nth(1)).to_contain_text(str(first.token))
        expect(holders.nth(1)).to_contain_text("handed over")
        second.release()
        expect(page.locator("#lock")).to_contain_text("Free.")
        page.get_by_role("link", name="All locks").click()
        expect(page.locator("#overview")).to_be_visible()
        expect(page.locator("#wait")).to_have_text(re.compile(r"\d"))


def test_renewal_that_the_slow_reader_has_not_seen_yet(page: Page, one: Server) -> None:
    with handfast.connect(one.url, ttl=3) as client, client.lock("orders"), running(one.url, interval=3600) as dashboard:
        page.goto(dashboard.url)
        left = page.locator("#rows .left")
        expect(left).to_have_text("renewal not seen yet", timeout=20_000)
        page.locator("#rows a.name").click()
        expect(page.locator("#lock .left")).to_have_text(re.compile(r"\d m?s"))


def test_token_in_the_address_opens_page_and_stream(page: Page, one: Server) -> None:
    with running(one.url, host="0.0.0.0") as dashboard:
        page.goto(dashboard.url.replace("0.0.0.0", "127.0.0.1"))
        expect(page.locator("#connection")).to_have_text("Live")
        assert "token" not in page.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_nothing_sticks_out(browser: Browser, three: Servers, width: int, scheme: str) -> None:
    with handfast.connect(three.urls, label="a-rather-long-label-for-a-client") as client:
        handfast.bootstrap(client)
        with running(three.urls) as dashboard, window(browser, width, 844, scheme) as page:
            names = [f"{'tenant-with-a-long-name:' * 6}{i}" for i in range(30)]
            leases = [client.lock(name).acquire() for name in names]
            with watched(page):
                page.goto(dashboard.url)
                expect(page.locator("#held")).to_have_text("30")
                assert page.evaluate("document.documentElement.scrollWidth") == width
                page.locator("#rows a.name").first.click()
                expect(page.locator("#lock section")).to_have_count(3)
                assert page.evaluate("document.documentElement.scrollWidth") == width
            for lease in leases:
                lease.release()
