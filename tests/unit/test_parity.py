"""Both facades have the same names and parameters."""

from __future__ import annotations

import inspect
from types import MemberDescriptorType
from typing import Any

import pytest

import handfast.aio
import handfast.sync

AWAITED = {
    "Client": {"close"},
    "Lock": {"acquire", "try_acquire", "holder", "waiters"},
    "Lease": {"extend", "release"},
}
"""What talks to a server; everything else is the same plain call in both."""
MODULE_AWAITED = {"bootstrap"}
DUNDERS = {"__enter__": "__aenter__", "__exit__": "__aexit__"}


def public(thing: object) -> set[str]:
    # A class of locks lists names that raise an error with a hint.
    return {name for name in dir(thing) if not name.startswith("_") and hasattr(thing, name)}


def shape(function: Any) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def awaited(function: Any) -> bool:
    """A coroutine function, or a plain function that returns a coroutine."""
    return inspect.iscoroutinefunction(function) or "Coroutine" in str(function.__annotations__.get("return"))


def members() -> list[tuple[str, str]]:
    return [(kind, name) for kind in AWAITED for name in sorted(public(getattr(handfast.sync, kind)))]


def test_both_modules_export_the_same_names() -> None:
    assert set(handfast.sync.__all__) == set(handfast.aio.__all__)
    assert {"Client", "Lock", "Lease", "connect", "from_client", "bootstrap"} <= set(handfast.sync.__all__)


def test_package_exports_the_blocking_facade_and_every_error() -> None:
    for name in handfast.sync.__all__:
        assert getattr(handfast, name) is getattr(handfast.sync, name)
    for name in handfast.errors.__all__:
        assert getattr(handfast, name) is getattr(handfast.errors, name)
    assert set(handfast.__all__) >= {*handfast.sync.__all__, *handfast.errors.__all__, "aio", "backoff"}


@pytest.mark.parametrize("name", handfast.sync.__all__)
def test_module_functions_take_the_same_arguments(name: str) -> None:
    ours, theirs = getattr(handfast.sync, name), getattr(handfast.aio, name)
    assert shape(ours) == shape(theirs)
    assert inspect.iscoroutinefunction(theirs) == (name in MODULE_AWAITED)
    assert not inspect.iscoroutinefunction(ours)


@pytest.mark.parametrize("kind", AWAITED)
def test_classes_have_the_same_public_names(kind: str) -> None:
    assert public(getattr(handfast.sync, kind)) == public(getattr(handfast.aio, kind))


@pytest.mark.parametrize(("kind", "name"), members())
def test_methods_take_same_arguments_and_only_network_calls_are_awaited(kind: str, name: str) -> None:
    ours = inspect.getattr_static(getattr(handfast.sync, kind), name)
    theirs = inspect.getattr_static(getattr(handfast.aio, kind), name)
    assert type(ours) is type(theirs)
    if isinstance(ours, property | MemberDescriptorType):
        return
    assert shape(ours) == shape(theirs)
    assert not awaited(ours)
    assert (awaited(theirs) and name != "locked") == (name in AWAITED[kind])


@pytest.mark.parametrize("kind", AWAITED)
def test_blocking_with_is_async_with_in_asyncio_facade(kind: str) -> None:
    ours, theirs = getattr(handfast.sync, kind), getattr(handfast.aio, kind)
    for plain, awaited in DUNDERS.items():
        assert hasattr(ours, plain)
        assert hasattr(theirs, awaited)
        # A plain `with` on an async lock must be an error, not a body without a lock.
        assert not hasattr(theirs, plain)
        assert not hasattr(ours, awaited)


@pytest.mark.parametrize("name", ["name", "owner", "token", "remaining", "valid", "check", "lost", "votes"])
def test_lease_has_public_names_of_contract(name: str) -> None:
    assert hasattr(handfast.sync.Lease, name)
    assert hasattr(handfast.aio.Lease, name)


@pytest.mark.parametrize("facade", [handfast.sync, handfast.aio])
def test_dir_of_a_lock_lists_no_attribute_that_only_leases_have(facade: Any) -> None:
    names = dir(facade.connect("redis://127.0.0.1").lock("orders"))
    assert "acquire" in names
    assert not {"release", "token", "locked"} & set(names)
