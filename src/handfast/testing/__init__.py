"""The test kit, for handfast's own tests and for its users' tests.

It has real servers that can be paused, killed and emptied, a bad network in front of them, and leases that are lost on
demand. `plugin` has them as pytest fixtures. See docs/testing.md.
"""

from .cluster import Cluster
from .lose import lose
from .proxy import Flow, Proxy
from .replicated import Replicated
from .sentinel import SentinelGroup
from .server_versions import available
from .servers import Server, Servers, TlsFiles

__all__ = [
    "Cluster",
    "Flow",
    "Proxy",
    "Replicated",
    "SentinelGroup",
    "Server",
    "Servers",
    "TlsFiles",
    "available",
    "lose",
]
