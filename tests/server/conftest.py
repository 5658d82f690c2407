"""Sentinel groups and clusters, shared by the tests of a worker."""

from __future__ import annotations

from tests.topologies import _sharded, _watched, doomed, sharded, watched

__all__ = ["_sharded", "_watched", "doomed", "sharded", "watched"]
