"""NebulaGrid's Python SDK by a name that no other package has: what programs import (docs/sdk.md).

The code is in ``client``, beside the command line; this package only names what is public.
"""

from client import __version__
from client.errors import NebulaError, ProfileError, Unreachable, UsageFault, WaitTimeout
from client.retry import RetryPolicy
from client.sdk import NebulaClient
from client.shapes import FINAL, Gpu, Job, LogChunk, Node
from client.transport import HttpxTransport, StdlibTransport

__all__ = [
    "FINAL",
    "Gpu",
    "HttpxTransport",
    "Job",
    "LogChunk",
    "NebulaClient",
    "NebulaError",
    "Node",
    "ProfileError",
    "RetryPolicy",
    "StdlibTransport",
    "Unreachable",
    "UsageFault",
    "WaitTimeout",
    "__version__",
]
