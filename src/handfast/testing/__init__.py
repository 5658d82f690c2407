"""What our tests use and our users' tests may: real servers that can be paused, killed and forgotten, a bad network in
front of them, and leases that are lost on demand. `plugin` has them as pytest fixtures. See docs/testing.md."""

from .loss import lose
from .proxy import Flow, Proxy
from .servers import Server, Servers, TlsFiles, available

__all__ = ["Flow", "Proxy", "Server", "Servers", "TlsFiles", "available", "lose"]
