"""Checkpoints: a state comes back to the bit, whole files or none, and nothing else is built."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

import aspire.methods as methods
from aspire.api import prepare
from aspire.methods import aspire, central
from aspire.runs import checkpoint
from aspire.runs.decode import Malformed, decode
from aspire.runs.log import Place, digest
from aspire.sets import KL, Box, CDNorm, Ellipsoid, Simplex
from aspire.simulator import simulator
from aspire.simulator.delays import Absence
from tests.helpers import blobs, linear, same

METHODS = [
    aspire(quorum=2),
    aspire(Simplex(), pull_bound=10.0),
    aspire(KL(0.3), coordinate_bound=1.0),
    aspire(Box(0.1, 0.8), staleness=3),
    aspire(CDNorm([0.2, 0.3, 0.4, 0.1], 0.1, 2.0), local_steps=2),
    aspire(Ellipsoid(0.1, [0.1, 0.2, 0.3, 0.4])),
    central(),
    methods.afl(),
    methods.afl(optimizer="adam", clip=2.0),
    methods.cover(),
    methods.drfa_prox(),
    methods.fedavg(),
    methods.fedbuff(optimizer="momentum"),
    methods.gcivr(),
    methods.gda(),
    methods.gdmax(),
    methods.ind(site=1),
    methods.q_ffl(),
]
NOTHING = Place(0, "", 0, "")


def begun(method: Any, events: int, **more: Any) -> tuple[Any, simulator.Simulation]:
    job = prepare(linear(), blobs(), method=method, iterations=60, batch_size=8, **more)
    simulation = job.begin()
    seen = iter(range(events))
    simulator.run(simulation, lambda s: next(seen, None) is None)
    return job, simulation


def there_and_back(job: Any, simulation: simulator.Simulation) -> Any:
    tensors: dict[str, torch.Tensor] = {}
    saved = checkpoint.Saved(simulation.standing(), [], NOTHING)
    tree = json.loads(json.dumps(checkpoint.pack(saved, tensors)))
    expected = job.expected(simulator.Standing)
    return decode(tree, checkpoint.Saved, tensors, expected).state


@pytest.mark.parametrize("events", [2, 40])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_state_comes_back_and_goes_on_to_the_bit(method, events):
    away = {} if method.name == "aspire-central" else {"absences": [Absence(2, 3.0, 9.0)]}
    job, simulation = begun(method, events, **away)
    standing = there_and_back(job, simulation)
    assert same(standing, simulation.standing())
    other = job.begin()
    other.stand(standing)
    for one in (simulation, other):
        seen = iter(range(25))
        simulator.run(one, lambda s, seen=seen: next(seen, None) is None)
    assert same(other.standing(), simulation.standing())


def test_tasks_of_one_version_of_z_share_it_in_the_file_and_after_it():
    """As in memory: a checkpoint grows with the versions of z in flight, not with the sites."""
    job, simulation = begun(methods.direct(quorum=2), 20)
    hands = simulation.standing().desk.hands
    versions = {id(task.vectors["w"]) for task in hands.values()}
    assert len(versions) < len(hands) == 4
    tensors: dict[str, torch.Tensor] = {}
    tree = checkpoint.pack(hands, tensors)
    assert len(tensors) == len(versions)
    assert len({json.dumps(task) for _, task in tree["dict"]}) == len(hands)
    again = there_and_back(job, simulation).desk.hands
    assert len({id(task.vectors["w"]) for task in again.values()}) == len(versions)
    assert same(again, hands)


def test_what_is_no_message_shares_nothing():
    """A tensor that may be written to has one place in a state."""
    job, simulation = begun(methods.direct(quorum=2), 20)
    tensors: dict[str, torch.Tensor] = {}
    saved = checkpoint.Saved(simulation.standing(), [], NOTHING)
    tree = checkpoint.pack(saved, tensors)
    standing = at(tree, "state")
    task = standing["desk"]["fields"]["hands"]["dict"][0][1]["fields"]
    master = standing["master"]["fields"]
    handed, z = task["vectors"]["dict"][0][1], master["z"]
    for one, other in ((handed, z), (z, handed)):
        before = dict(one)
        one.update(other)
        with pytest.raises(Malformed, match="used elsewhere"):
            decode(tree, checkpoint.Saved, tensors, job.expected(simulator.Standing))
        one.update(before)


def test_three_are_kept_and_damage_is_told(tmp_path):
    job, simulation = begun(aspire(), 9)
    expected, standing = job.expected(simulator.Standing), simulation.standing()
    for t in (10, 20, 30, 40):
        checkpoint.save(tmp_path, t, checkpoint.Saved(standing, [{"t": t}], NOTHING))
    files = checkpoint.files(tmp_path)
    assert [int(f.stem) for f in files] == [40, 30, 20]
    assert checkpoint.read(files[0], expected).history == [{"t": 40}]
    data = bytearray(files[0].read_bytes())
    data[-5] ^= 0xFF
    files[0].write_bytes(data)
    with pytest.raises(ValueError, match="checksum"):
        checkpoint.read(files[0], expected)
    files[1].write_bytes(files[1].read_bytes()[:50])
    with pytest.raises(ValueError, match="expected a whole checkpoint"):
        checkpoint.read(files[1], expected)
    with pytest.raises(ValueError, match="there is none"):
        checkpoint.read(tmp_path, expected)
    assert checkpoint.read(files[2], expected).history == [{"t": 20}]


def test_a_full_disk_leaves_the_old_ones(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, {"t": 1})

    def full(*arguments, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.rundir.os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(tmp_path, 2, {"t": 2})
    monkeypatch.undo()
    assert [path.stem for path in checkpoint.files(tmp_path)] == ["000000000001"]
    assert len(list((tmp_path / checkpoint.FOLDER).iterdir())) == 1


def test_only_data_is_saved():
    with pytest.raises(TypeError, match="expected data only"):
        checkpoint.pack({"f": print}, {})
    tensors: dict[str, Any] = {}
    assert checkpoint.pack([np.int64(3), np.array([True])], tensors) == {
        "list": [3, {"array": "0"}]
    }


def at(tree: Any, *path: str) -> Any:
    """The fields of an object in a tree, further in with each name."""
    for name in path:
        tree = tree["fields"][name]
    return tree["fields"]


def with_class(tree: Any, name: str) -> None:
    at(tree, "state")["desk"]["class"] = name


ODD = {
    "module to import": lambda tree: with_class(tree, "aspire.__main__:main"),
    "another package": lambda tree: with_class(tree, "subprocess:Popen"),
    "no dataclass": lambda tree: with_class(tree, "aspire.cli.shared:Group"),
    "another state": lambda tree: with_class(tree, "aspire.types:Task"),
    "missing field": lambda tree: at(tree, "state", "master").pop("z"),
    "extra field": lambda tree: at(tree, "state", "master").update(y=1),
    "text for a tensor": lambda tree: at(tree, "state", "master").update(z="z"),
    "array for a tensor": lambda tree: at(tree, "state", "master").update(z={"array": "0"}),
    "no such tensor": lambda tree: at(tree, "state", "master").update(z={"tensor": "z"}),
    "tensor by a list": lambda tree: at(tree, "state", "master").update(z={"tensor": [1]}),
    "the tensor of another": lambda tree: at(tree, "state", "master").update(
        z=at(tree, "state", "master")["average"]
    ),
    "a negative step": lambda tree: at(tree, "state", "master").update(t=-1),
    "a huge step": lambda tree: at(tree, "state", "master").update(t=10**400),
    "truth for a number": lambda tree: at(tree, "state", "master").update(t=True),
    "deep": lambda tree: at(tree, "state", "master").update(t=json.loads("[" * 500 + "]" * 500)),
    "a worker too many": lambda tree: at(tree, "state")["heap"]["list"][0]["tuple"].__setitem__(
        2, 4
    ),
    "a short tuple": lambda tree: at(tree, "state")["heap"]["list"][0]["tuple"].pop(),
    "a list for a key": lambda tree: at(tree, "state", "desk")["hands"]["dict"][0].__setitem__(
        0, {"list": [1]}
    ),
    "a key twice": lambda tree: at(tree, "state", "desk")["hands"]["dict"].append(
        at(tree, "state", "desk")["hands"]["dict"][0]
    ),
    "a pair of one": lambda tree: at(tree, "state", "desk")["hands"]["dict"][0].pop(),
    "a desk that lost a task": lambda tree: at(tree, "state", "desk")["hands"]["dict"].pop(),
    "no list": lambda tree: tree["fields"].update(history={"list": 3}),
    "text in history": lambda tree: tree["fields"].update(
        history={"list": [{"dict": [["t", "x"]]}]}
    ),
}


@pytest.mark.parametrize("change", ODD.values(), ids=ODD.keys())
def test_what_is_no_state_of_the_run_is_malformed(change):
    job, simulation = begun(aspire(), 9)
    tensors: dict[str, torch.Tensor] = {}
    tree = checkpoint.pack(checkpoint.Saved(simulation.standing(), [], NOTHING), tensors)
    expected = job.expected(simulator.Standing)
    assert digest(decode(tree, checkpoint.Saved, tensors, expected).state)
    change(tree)
    with pytest.raises(Malformed):
        decode(tree, checkpoint.Saved, tensors, expected)


@pytest.mark.parametrize("other", [
    lambda x: x.float(), lambda x: x[:-1], lambda x: x[None], lambda x: x.long(),
    lambda x: torch.zeros(0), lambda x: torch.tensor(1.0), lambda x: x.to(torch.bfloat16),
])  # fmt: skip
def test_another_tensor_is_malformed(other):
    job, simulation = begun(aspire(), 9)
    tensors: dict[str, torch.Tensor] = {}
    tree = checkpoint.pack(checkpoint.Saved(simulation.standing(), [], NOTHING), tensors)
    name = at(tree, "state", "master")["z"]["tensor"]
    with pytest.raises(Malformed, match=r"master\.z"):
        decode(
            tree, checkpoint.Saved, tensors | {name: other(tensors[name])},
            job.expected(simulator.Standing),
        )  # fmt: skip


def test_a_method_says_what_its_states_are():
    """One from elsewhere has none unless it says so, and then its runs cannot be resumed."""
    from dataclasses import replace

    job, simulation = begun(replace(aspire(form="consensus"), states=()), 9)
    with pytest.raises(ValueError, match="names no `states`"):
        there_and_back(job, simulation)
