"""What keeps root from starting the control plane, in one sentence."""

from __future__ import annotations


class RootedError(RuntimeError):
    """Root can't set this installation up here."""
