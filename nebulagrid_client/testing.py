"""A control plane in your own process, for tests of programs that use the SDK (docs/sdk.md)."""

from client.testing import FakeApi

__all__ = ["FakeApi"]
