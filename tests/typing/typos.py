"""Mistakes that a type checker must find: one in each line that ends with `# wrong`, and no other."""

import handfast
import handfast.aio
from handfast import Clint  # wrong

kind = Clint
client = handfast.conect("redis://localhost")  # wrong
lazily = handfast.aio.conect("redis://localhost")  # wrong
lock = handfast.connect().lock("orders", tll=5)  # wrong
lock = handfast.connect().lock("orders", ttl="5")  # wrong


def work() -> None:
    try:
        handfast.connect().lock("orders").acquire(timeout=5)  # wrong
    except handfast.NotAquired:  # wrong
        pass


def listener(event: handfast.Event) -> None:
    print(event.sort)  # wrong


def holder() -> None:
    seen = handfast.connect().lock("orders").holder()
    print(seen.owner)  # wrong


@handfast.connect().locked("orders", skip_value="none")  # wrong
def report() -> str:
    return "done"
