"""Where the bytes of artefacts lie."""

from __future__ import annotations

import hashlib
from pathlib import Path

from django.conf import settings

from agent.protocol import rank_parts


def artifact_path(rank: str, name: str) -> Path:
    """The name is hashed, so that no name can leave the folder. Raises ProtocolError for what is no rank."""
    job, _, _ = rank_parts(rank)
    return artifacts_folder(job) / rank / hashlib.sha256(name.encode()).hexdigest()


def artifacts_folder(job: int) -> Path:
    return Path(settings.ARTIFACT_DIR) / str(job // 1000) / str(job)
