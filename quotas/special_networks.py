"""Which addresses belong to the public network, by a list of our own.

Python's ``is_global`` follows the registries of its release, knows parts of a special network that are reachable, and differs from
version to version. What a person may make this server talk to must not: here an address is public only if it is in no special network.
Pure.
"""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: IANA's special-purpose registry and what clouds answer their own machines at.
SPECIAL_V4 = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared: carriers, and metadata of clouds
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's own services for a machine
        "169.254.0.0/16",  # link-local: metadata services
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments: metadata at Oracle
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # multicast tunnels
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
#: The only block that public IPv6 addresses are given from; all else is special.
GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
SPECIAL_V6 = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments: Teredo, ORCHID, benchmarks
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: any IPv4 address may be behind it
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)


def inner_address(address: Address) -> Address:
    """The IPv4 address that ``::ffff:a.b.c.d`` is another spelling of; any other one as it is."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def is_public(address: Address) -> bool:
    inner = inner_address(address)
    if isinstance(inner, ipaddress.IPv4Address):
        return not any(inner in network for network in SPECIAL_V4)
    return inner in GLOBAL_V6 and not any(inner in network for network in SPECIAL_V6)
