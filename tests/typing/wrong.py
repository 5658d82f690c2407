"""Two mistakes of the kinds that public_api.py would show, so that its test is known to notice them."""

from __future__ import annotations

from typing import assert_type

import handfast


def wrong(client: handfast.Client) -> None:
    assert_type(client.lock("a").acquire(), str)  # mistake
    client.lock("a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # mistake
