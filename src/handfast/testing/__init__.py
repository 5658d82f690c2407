"""What our tests use and our users' tests may: real servers that can be paused, killed and forgotten."""

from .servers import Server, Servers, TlsFiles, available

__all__ = ["Server", "Servers", "TlsFiles", "available"]
