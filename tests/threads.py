"""Many at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connection

from tests.waiting import PATIENCE_S


def in_threads(count: int, call: Callable[[int], Any]) -> list[Any]:
    """What ``call(number)`` gave or raised, from ``count`` threads that begin together, each with its own connection."""
    gate = threading.Barrier(count)

    def one(number: int) -> Any:
        try:
            if connection.vendor == "sqlite":  # here all wait for each other's writes, longer than an installation has patience
                with connection.cursor() as cursor:
                    cursor.execute(f"PRAGMA busy_timeout = {round(PATIENCE_S * 1000)}")
            gate.wait(PATIENCE_S)
            return call(number)
        except Exception as error:
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))
