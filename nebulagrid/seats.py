"""How many connections there are, in all and from each address, and which one goes when there is no room for another.

A connection rests while nothing of it is being worked on: no whole request, body included, has arrived yet, or its last one was
answered.
Whoever opens many and leaves them half done takes seats from himself: the one that has rested longest makes room for a new one.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address


def address_key(address: str) -> str:
    """For counting: an IPv6 client counts as its /64, which is what one gets."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        return str(found.ipv4_mapped or IPv6Address(int(found) >> 64 << 64))
    return str(found)


class Seat:
    """A connection's place. ``close`` is called when it has to make room."""

    __slots__ = ("_seats", "address", "close", "is_taken")

    def __init__(self, seats: Seats, address: str) -> None:
        self._seats, self.address, self.is_taken = seats, address, True
        self.close: Callable[[], object] = lambda: None

    def rest(self) -> None:
        if self.is_taken:
            self._seats.rest(self)

    def work(self) -> None:
        self._seats.work(self)

    def leave(self) -> None:
        """The connection has ended. A second call does nothing."""
        if self.is_taken:
            self.is_taken = False
            self._seats.leave(self)


class Seats:
    """``most`` in all, ``most_each`` from one address (0 = as many as there are)."""

    def __init__(self, *, most: int, most_each: int) -> None:
        self.most, self.most_each = most, most_each
        self.count: Counter[str] = Counter()
        #: Those that rest, longest first: of everybody, and of each address.
        self._resting: OrderedDict[Seat, None] = OrderedDict()
        self._resting_of: dict[str, OrderedDict[Seat, None]] = {}

    @property
    def total(self) -> int:
        return self.count.total()

    def take(self, address: str) -> Seat | None:
        """A seat that rests, or None if neither the address nor anybody else has one to give up."""
        if self.most_each and self.count[address] >= self.most_each:
            if not self._evict(self._resting_of.get(address)):
                return None
        elif self.total >= self.most and not self._evict(self._resting):
            return None
        seat = Seat(self, address)
        self.count[address] += 1
        self.rest(seat)
        return seat

    def _evict(self, line: OrderedDict[Seat, None] | None) -> bool:
        if not line:
            return False
        seat = next(iter(line))
        seat.leave()
        seat.close()
        return True

    def rest(self, seat: Seat) -> None:
        own = self._resting_of.setdefault(seat.address, OrderedDict())
        for line in (self._resting, own):
            line[seat] = None
            line.move_to_end(seat)

    def work(self, seat: Seat) -> None:
        self._resting.pop(seat, None)
        own = self._resting_of.get(seat.address)
        if own is not None:
            own.pop(seat, None)
            if not own:
                del self._resting_of[seat.address]

    def leave(self, seat: Seat) -> None:
        self.work(seat)
        self.count[seat.address] -= 1
        if not self.count[seat.address]:
            del self.count[seat.address]
