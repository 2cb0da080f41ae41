"""The watch over a Ray node and its head, with sockets in their place."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from aspire.engines.ray.watch import HEAD, PATIENCE, Watch, answers
from aspire.runs.errors import Lost


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def listening(family: int, address: object) -> socket.socket:
    made = socket.socket(family)
    made.bind(address)
    made.listen()
    return made


def test_a_node_that_ends_is_noticed_at_once(tmp_path: Path) -> None:
    node = listening(socket.AF_UNIX, str(tmp_path / "node"))
    watch = Watch({"raylet_socket_name": str(tmp_path / "node")})
    line, _ = node.accept()
    watch.look()
    line.close()  # hung up, but it is there
    watch.look()
    node.close()
    with pytest.raises(Lost, match="node"):
        watch.look()
    watch.close()


def test_a_head_may_be_away_for_a_while() -> None:
    clock = Clock()
    head = listening(socket.AF_INET, ("127.0.0.1", 0))
    address = f"127.0.0.1:{head.getsockname()[1]}"
    watch = Watch({"gcs_address": address}, clock)
    watch.look()
    head.close()
    while clock.now < PATIENCE:
        clock.now += HEAD
        watch.look()
    assert not answers(address)
    clock.now += HEAD
    with pytest.raises(Lost, match=address):
        watch.look()


def test_a_ray_client_has_nothing_to_watch() -> None:
    Watch({}).look()
    assert not answers("nowhere")
