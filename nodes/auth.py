"""Who an agent is. Its credential is a 256-bit secret; SHA-256 is enough for it and costs microseconds."""

from __future__ import annotations

import hashlib
import hmac

from nodes.models import Node, NodeState


def credential_sha256(credential: str) -> str:
    return hashlib.sha256(credential.encode()).hexdigest()


def node_authenticate(authorization: str) -> Node | None:
    """The node of an ``Authorization: Node <id>:<credential>`` header; None if it is none, wrong, or of a retired node.

    One SELECT; compares in constant time.
    """
    scheme, _, rest = authorization.partition(" ")
    number, _, credential = rest.strip().partition(":")
    if scheme.lower() != "node" or not (number.isascii() and number.isdigit() and len(number) < 19) or not 32 <= len(credential) <= 200:
        return None
    node = next(iter(Node.objects.filter(pk=int(number)).order_by()), None)  # `first` would sort
    known = (node.credential_sha256 if node is not None else None) or "-"
    is_right = hmac.compare_digest(known, credential_sha256(credential))
    return node if is_right and node is not None and node.state != NodeState.RETIRED else None
