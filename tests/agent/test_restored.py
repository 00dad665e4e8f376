"""A control plane that came back from a backup asks, and an honest agent tells."""

from __future__ import annotations

from collections.abc import Callable

from agent.protocol import Desired, RestoreAsk
from agent.testing import FakeControlPlane
from tests.agent.test_runner import WHOLE, Node, make, node, plane  # noqa: F401 - fixtures


def asked(plane: FakeControlPlane, **more: object) -> None:  # noqa: F811
    plane.ask = RestoreAsk(id="restore-1", **more)  # type: ignore[arg-type]
    plane.nudge()
    plane.wait(lambda: plane.ask is None, what="the answer")


def test_it_tells_what_it_runs_and_what_it_ever_ran(node: Node, plane: FakeControlPlane) -> None:  # noqa: F811
    plane.run("5.3.0", "gone")
    node.started("5.3.0")
    node.ranks.running("5.3.0", 4241)
    node.ranks.exit("5.3.0", 0)
    plane.wait(lambda: "5.3.0" in node.ranks.forgotten)
    plane.run("7.2.0", "train", gpus=WHOLE)
    node.started("7.2.0")
    asked(plane, jobs=(5, 6, 7), ranks=("7.2.0", "8.1.0"))
    (answer,) = plane.answers
    assert answer.id == "restore-1"
    assert answer.ran == {"5": 3, "7": 2}, "also of what it has forgotten"
    assert {rank: spec.argv for rank, spec in answer.specs.items()} == {"7.2.0": ("train",)}
    assert answer.last_job == 7


def test_an_order_that_was_refused_never_ran(node: Node, plane: FakeControlPlane) -> None:  # noqa: F811
    plane.order(Desired(rank="9.4.0", epoch=4, want="STOP"))
    plane.wait_state("9.4.0", "EXITED")
    asked(plane, jobs=(9,), ranks=("9.4.0",))
    assert (plane.answers[0].ran, plane.answers[0].specs) == ({}, {})
    assert plane.answers[0].last_job == 9


def test_it_answers_once_and_stops_nothing_meanwhile(node: Node, plane: FakeControlPlane) -> None:  # noqa: F811
    plane.run("7.1.0", "train")
    node.started("7.1.0")
    plane.desired.clear()  # the restored side gives no orders before it knows
    asked(plane, jobs=(7,))
    count = len(plane.syncs)
    plane.wait(lambda: len(plane.syncs) > count + 3)
    assert len(plane.answers) == 1
    assert plane.present == {"7.1.0"}


def test_output_that_the_backup_lacks_comes_again(node: Node, plane: FakeControlPlane) -> None:  # noqa: F811
    plane.forgets = False
    for rank in ("1.1.0", "2.1.0"):
        plane.run(rank, "train")
        node.started(rank)
        node.ranks.running(rank, 4242)
        node.ranks.prints(rank, b"first words\n")
    node.ranks.prints("1.1.0", b"last words\n")
    node.ranks.exit("1.1.0", 0)
    plane.wait_state("1.1.0", "EXITED")
    plane.wait(lambda: bytes(plane.logs["1.1.0"]) == b"first words\nlast words\n" and plane.logs["2.1.0"])
    # The one has ended with all of it told, the other runs and prints no more: nothing else would bring these bytes.
    with plane.lock:
        plane.logs["1.1.0"] = bytearray(b"first")
        plane.logs["2.1.0"] = bytearray()
    asked(plane)
    plane.wait(lambda: bytes(plane.logs["1.1.0"]) == b"first words\nlast words\n", what="the end of what ended")
    plane.wait(lambda: bytes(plane.logs["2.1.0"]) == b"first words\n", what="the begin of what runs")


def test_a_new_agent_start_answers_from_its_store(make: Callable[..., Node], plane: FakeControlPlane) -> None:  # noqa: F811
    first = make().online()
    plane.run("7.2.0", "train")
    first.started("7.2.0")
    first.stop()
    plane.ask = RestoreAsk(id="restore-1", jobs=(7,))
    make().online()
    plane.wait(lambda: plane.answers)
    assert plane.answers[0].ran == {"7": 2}
