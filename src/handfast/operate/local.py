"""A quorum on this machine that lasts as long as its object."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from handfast.sync import connect

__all__ = ["LocalQuorum"]


class LocalQuorum:
    """Embedded servers on unix sockets, open for votes. They end with close(), and with this process in any case."""

    def __init__(self, nodes: int) -> None:
        self._client = connect(f"embedded://private?nodes={nodes}", guard=nodes > 1)
        try:
            with self._client.lock("handfast-starts", wait=5):
                pass  # starts the servers
        except BaseException:
            self._client.close()
            raise
        self.urls = [f"unix://{address.path}" for address in self._client._addresses]

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
