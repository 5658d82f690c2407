"""The `with` block of everything in the test kit that is started and closed."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

__all__ = ["Started"]


class Started:
    """Starts with its block and is closed with it, also if the start fails half way."""

    @abstractmethod
    def start(self) -> Self: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()
