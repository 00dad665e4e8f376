"""Where other machines reach this one, and which of its ports are free. Nothing here sends anything."""

from __future__ import annotations

import errno
import ipaddress
import socket

#: A network that no machine is in (documentation, RFC 5737 and RFC 3849): the kernel only tells from where it would be reached.
NOWHERE = ("192.0.2.1", "2001:db8::1")


def own_address(host: str, port: int) -> str | None:
    """The address that this machine reaches the control plane from, ``host``; on the control plane's own machine, where that is the
    loopback that no other node can call, the one that it reaches other networks from. None = neither is known."""
    found = _source(host, port)
    if found is not None and not ipaddress.ip_address(found.partition("%")[0]).is_loopback:
        return found
    wide = (_source(target, port) for target in NOWHERE)
    return next((address for address in wide if address is not None), found)


def _source(host: str, port: int) -> str | None:
    try:
        family, kind, proto, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def port_is_taken(port: int) -> bool:
    """Whether a program of this machine listens on the port now, on any address that a rendezvous would bind."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):  # noqa: S104 - only tried
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what only ended a moment ago is no listener
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
                probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
    return False
