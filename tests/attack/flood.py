"""What one person does to a control plane when he does all at once that costs the most: ``python -m tests.attack.flood URL TOKEN SESSION``.

A process of its own, so that the measuring beside it isn't slowed down by it. It says ``ready`` when all of it is under way, goes on
until its standard input ends, and then says what it was answered, as JSON.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

ADDRESS = "127.0.0.2"
PATIENCE_S = 60
#: Prints one letter, of which the job's secrets consist.
PRINTS = "import sys\nfor _ in range(20): sys.stdout.write('a' * 600_000); sys.stdout.flush()"
#: A line on which a backtracking pattern would start anew at each word.
FAILS = "import sys; sys.stdout.write('unable to open ' * 4_400); sys.exit(1)"
LEAVES = 'for n in 1 2 3 4; do truncate -s 20M "$NEBULA_ARTIFACTS/$n"; done'


def http(url: str, token: str, address: str) -> httpx.Client:
    """As a program on a machine of its own: whose turn it is goes by address."""
    limits = httpx.Limits(max_connections=50)
    transport = httpx.HTTPTransport(local_address=address, limits=limits)
    return httpx.Client(base_url=url, transport=transport, headers={"Authorization": f"Bearer {token}"}, timeout=30)


@dataclass
class Attack:
    """Everything below side by side until ``stop``; ``statuses``: what was answered, by what was done."""

    url: str
    token: str
    session: str
    stop: threading.Event = field(default_factory=threading.Event)
    statuses: dict[str, set[int]] = field(default_factory=dict)

    def run(self) -> None:
        steps = [self.masking, self.pages, self.pages, self.pages, self.submits, self.secrets, self.lists, self.headers, self.half_sent]
        threads = [threading.Thread(target=self._until_stopped, args=(step,), daemon=True) for step in steps]
        with http(self.url, self.token, ADDRESS) as client:
            for name, size in ((f"s{n}", 32_768 - n) for n in range(12)):
                client.put(f"/api/v1/secrets/{name}", json={"value": "a" * size})
            client.post("/api/v1/jobs/submit", json=self._job(FAILS))
            client.post("/api/v1/jobs/submit", json={"argv": ["sh", "-c", LEAVES], "gpu_count": 0})
        for thread in threads:
            thread.start()
        while not {"masking", "submits", "secrets", "lists", "pages"} <= self.statuses.keys():
            self.stop.wait(0.1)
        print("ready", flush=True)
        sys.stdin.read()
        self.stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        print(json.dumps({what: sorted(found) for what, found in self.statuses.items()}), flush=True)

    def _until_stopped(self, step: Callable[[httpx.Client], None]) -> None:
        with http(self.url, self.token, ADDRESS) as client:
            while not self.stop.is_set():
                with contextlib.suppress(httpx.HTTPError, OSError):  # refused, cut off: that is the others' good
                    step(client)

    def _note(self, what: str, answer: httpx.Response) -> None:
        self.statuses.setdefault(what, set()).add(answer.status_code)

    @staticmethod
    def _job(program: str, **more: object) -> dict[str, object]:
        return {"argv": ["python3", "-c", program], "gpu_count": 0, **more}

    def masking(self, client: httpx.Client) -> None:
        self._note("masking", client.post("/api/v1/jobs/submit", json=self._job(PRINTS, secrets=[f"s{n}" for n in range(12)])))
        self.stop.wait(2)

    def pages(self, client: httpx.Client) -> None:
        """Twelve views of the page of the job that failed, at once and again and again; four of each of three threads."""
        failed = client.get("/api/v1/jobs/", params={"state": "FAILED", "page_size": 1}).json().get("results")
        for _ in range(4 if failed else 0):
            headers = {"Cookie": f"sessionid={self.session}", "Authorization": ""}
            self._note("pages", client.get(f"/jobs/{failed[0]['id']}/", headers=headers))
        self.stop.wait(0.5)

    def submits(self, client: httpx.Client) -> None:
        text = "x" * 100_000
        self._note("submits", client.post("/api/v1/jobs/submit", json={**self._job(text), "env": {"A": text[:30_000]}, "hold": True}))

    def secrets(self, client: httpx.Client) -> None:
        self._note("secrets", client.put("/api/v1/secrets/x", json={"value": "b" * 30_000}))

    def lists(self, client: httpx.Client) -> None:
        self._note("lists", client.get("/api/v1/jobs/", params={"page_size": 200}))
        self.stop.wait(0.2)

    def headers(self, client: httpx.Client) -> None:
        """Header without an end, as fast as it is taken."""
        with socket.create_connection(("127.0.0.1", int(self.url.rsplit(":", 1)[1])), timeout=5, source_address=(ADDRESS, 0)) as peer:
            peer.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
            while not self.stop.is_set():
                peer.sendall(b"X-A: " + b"x" * 65_536 + b"\r\n")

    def half_sent(self, client: httpx.Client) -> None:
        """Connections that say half of a request and then nothing."""
        with contextlib.ExitStack() as open_ones:
            for _ in range(60):
                place = ("127.0.0.1", int(self.url.rsplit(":", 1)[1]))
                peer = open_ones.enter_context(socket.create_connection(place, 5, source_address=(ADDRESS, 0)))
                peer.sendall(b"POST /api/v1/jobs/submit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n")
            self.stop.wait(3)


if __name__ == "__main__":
    Attack(*sys.argv[1:]).run()
