"""The address that other nodes reach, and the port that a job's parts meet at."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import pytest

from agent import addresses
from agent.jobenv import SpecError, environment
from agent.protocol import RankSpec


def spec(port: int, **changes: Any) -> RankSpec:
    env = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": str(port), "NNODES": "2"}
    return RankSpec(**{"job": 1, "index": 0, "argv": ("true",), "env": env, **changes})


def surroundings(what: RankSpec) -> dict[str, str]:
    return environment(rank="1.1.0", spec=what, gpus=(), cuda_visible="index", artifacts="/a", agent_env={})


@pytest.mark.parametrize(
    ("ways", "expected"),
    [
        ({"grid.lab": "10.0.0.7"}, "10.0.0.7"),
        ({"grid.lab": "127.0.0.1", "192.0.2.1": "10.0.0.7"}, "10.0.0.7"),  # the control plane's own machine
        ({"grid.lab": "::1", "2001:db8::1": "fd00::7"}, "fd00::7"),
        ({"grid.lab": "127.0.0.1"}, "127.0.0.1"),  # a machine without a network
        ({}, None),
    ],
)
def test_an_agent_tells_an_address_that_other_nodes_reach(
    monkeypatch: pytest.MonkeyPatch, ways: dict[str, str], expected: str | None
) -> None:
    monkeypatch.setattr(addresses, "_source", lambda host, _port: ways.get(host))
    assert addresses.own_address("grid.lab", 443) == expected


def test_what_it_tells_is_an_address_of_this_machine() -> None:
    found = addresses.own_address("127.0.0.1", 9)
    assert found is not None
    with socket.create_server((found, 0), family=socket.AF_INET6 if ipaddress.ip_address(found).version == 6 else socket.AF_INET):
        pass  # only an own address can be listened on


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_a_stranger_listens_on_starts_the_job_anew_instead_of_failing_it(address: str) -> None:
    with socket.create_server((address, 0)) as stranger:
        port = stranger.getsockname()[1]
        with pytest.raises(SpecError, match=f"listens on port {port}") as caught:
            surroundings(spec(port))
        assert caught.value.kind == "port"
        # Only the first of several parts listens there.
        assert surroundings(spec(port, index=1))["NEBULA_RANK"] == "1.1.0"
        assert surroundings(spec(port, env={"MASTER_PORT": str(port), "NNODES": "1"}))["MASTER_PORT"] == str(port)
    assert surroundings(spec(port))["MASTER_PORT"] == str(port)


@pytest.mark.parametrize("port", ["", "x", "0", "99999"])
def test_a_port_of_the_users_own_making_is_theirs(port: str) -> None:
    env = {"MASTER_PORT": port, "NNODES": "2"}
    assert surroundings(spec(1, env=env))["MASTER_PORT"] == port
