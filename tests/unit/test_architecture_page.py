"""docs/architecture.md and its figure: everything that they name exists, and nothing important is missing."""

from __future__ import annotations

import builtins
import importlib
import inspect
import re
import runpy
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from handfast.protocol import claims, keys, scripts

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "handfast"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PROSE = re.sub(r"^```.*?^```", "", PAGE, flags=re.DOTALL | re.MULTILINE)
SPANS = sorted(set(re.findall(r"`([^`]+)`", PROSE)))
PATHS = [span for span in SPANS if re.fullmatch(r"[\w./]+(\.(py|lua|md|pml|toml)|/)", span)]
MODULES = {path.stem for path in PACKAGE.glob("*.py")} | {path.name for path in PACKAGE.iterdir() if path.is_dir()}
DOTTED = [span for span in SPANS if re.fullmatch(r"\w+(\.\w+)+", span) and span not in PATHS]
NAMES = [span for span in SPANS if re.fullmatch(r"[A-Z][a-z]\w+", span)]
FIGURE = runpy.run_path(str(ROOT / "docs" / "architecture.py"))


def modules() -> list[ModuleType]:
    files = [path for folder in ("", "core", "net", "protocol") for path in (PACKAGE / folder).glob("*.py")]
    names = ["handfast." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in files]
    return [importlib.import_module(name.removesuffix(".__init__")) for name in sorted(names)]


def classes() -> dict[str, list[type]]:
    """By name: the classes of the package. Both facades have a Lock, a Lease and a Client."""
    found: dict[str, list[type]] = {}
    for module in modules():
        for name, thing in vars(module).items():
            if isinstance(thing, type) and thing.__module__ == module.__name__:
                found.setdefault(name, []).append(thing)
    return found


def has(thing: Any, name: str) -> bool:
    """It has an attribute of this name, or its objects do."""
    if hasattr(thing, name):
        return True
    return (
        isinstance(thing, type)
        and re.search(rf"^    {name}\b|self\.{name}\b", inspect.getsource(thing), re.M) is not None
    )


def missing(dotted: str) -> bool:
    """The page's name of something leads nowhere."""
    first, *rest = dotted.split(".")
    if first not in MODULES:
        return not any(len(rest) == 1 and has(each, rest[0]) for each in classes().get(first, []))
    thing: Any = importlib.import_module(f"handfast.{first}")
    for name in rest:
        if not has(thing, name):
            if not isinstance(thing, ModuleType):
                return True
            try:
                thing = importlib.import_module(f"{thing.__name__}.{name}")
            except ModuleNotFoundError:
                return True
        else:
            thing = getattr(thing, name, None)
    return False


def rows(text: str) -> list[list[str]]:
    """The cells of all tables in a text."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_the_page_names_enough_to_be_worth_a_check() -> None:
    assert len(PATHS) > 30
    assert len(DOTTED) > 50
    assert len(NAMES) > 8


@pytest.mark.parametrize(
    "name", ["core.acquire.nothing", "core.nothing", "Hold.nothing", "Nothing.state", "Hold.state.x"]
)
def test_a_wrong_name_is_noticed(name: str) -> None:
    assert missing(name)


def test_every_path_exists() -> None:
    places = (ROOT, PACKAGE, PACKAGE / "protocol" / "scripts")
    assert [path for path in PATHS if not any((place / path).exists() for place in places)] == []


def test_every_function_class_and_attribute_exists() -> None:
    assert [name for name in DOTTED if missing(name)] == []


def test_every_class_exists() -> None:
    known = classes()
    assert [name for name in NAMES if name not in known and not hasattr(builtins, name)] == []


def test_every_script_and_every_module_of_the_core_is_named() -> None:
    every = [path.name for path in (PACKAGE / "protocol" / "scripts").glob("*.lua")]
    assert len(every) > len(scripts.NAMES)
    assert [name for name in every if f"`{name}`" not in PAGE] == []
    parts = [f"{folder}/{path.stem}" for folder in ("core", "protocol") for path in (PACKAGE / folder).glob("[a-z]*.py")]
    named = [part for part in parts if f"`{part}.py`" in PAGE or f"`{part.replace('/', '.')}." in PAGE]
    assert sorted(set(parts) - set(named)) == []


def test_the_keys_are_those_of_the_code() -> None:
    assert keys.__doc__ is not None
    ours = [row for row in rows(keys.__doc__) if row[0].startswith("`")]
    assert len(ours) == 9
    assert [row for row in ours if row not in rows(PAGE)] == []


def test_claims_and_pushes_are_those_of_the_code() -> None:
    assert claims.__doc__ is not None
    text = " ".join(claims.__doc__.split())
    grammar = dict(re.findall(r"^(\w+) += (.+)$", PAGE, re.MULTILINE))
    assert f"`{grammar['claim']}`" in text
    pushes = re.findall(r"`(\w+ id[^`]*)`", text)
    assert len(pushes) >= 2
    grammar_of_pushes = PAGE.partition("push       = ")[2].partition("vote ")[0]
    assert [push for push in pushes if push not in grammar_of_pushes] == []
    give = (PACKAGE / "protocol" / "scripts" / "_give.lua").read_text()
    assert f"`{grammar['record']}`" in give


def test_the_figure_is_up_to_date() -> None:
    drawn = (ROOT / "docs" / "architecture.svg").read_text()
    assert drawn == FIGURE["drawing"](), "run python docs/architecture.py"
    assert ElementTree.fromstring(drawn).tag.endswith("svg")


def test_the_figure_names_modules_that_exist_and_all_of_the_core() -> None:
    named = {Path(each) for each in FIGURE["modules"]()}
    assert [str(each) for each in named if not (ROOT / each).exists() and not (ROOT / f"{each}.py").exists()] == []
    assert {path.stem for path in (PACKAGE / "core").glob("[a-z]*.py")} <= {each.stem for each in named}
