"""Methods from a name and a map of plain values: as a command line and a message have them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from aspire.core.presets import Paper
from aspire.core.schedules import Limits
from aspire.methods import METHODS, aspire, consensus, direct, make
from aspire.methods.by_name import at_site, factory_of, parse, takes
from aspire.sets import Simplex
from tests.helpers import Board, blob_problem, same
from tests.methods.table import ROWS


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("afl", "afl", {}),
        (" afl ( ) ", "afl", {}),
        ("afl(rate=0.1, average=True)", "afl", {"rate": 0.1, "average": True}),
        ("fedavg(prior=[0.5, .25, 1], quorum=None)", "fedavg", None),
        ("drfa-prox(local_steps=-3)", "drfa-prox", {"local_steps": -3}),
        ("aspire(preset='paper(eta_w=0.1)')", "aspire", {"preset": "paper(eta_w=0.1)"}),
    ],
)
def test_a_text_is_a_name_and_a_map(text: str, name: str, arguments: dict[str, Any] | None) -> None:
    wanted = {"prior": [0.5, 0.25, 1], "quorum": None} if arguments is None else arguments
    assert parse(text) == (name, wanted)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("alf", "method='alf': expected one of afl, aspire, .*did you mean 'afl'"),
        ("", "method='': expected NAME or NAME"),
        ("afl(0.1)", "expected NAME.key=value"),
        ("afl(rate=f())", "expected NAME.key=value"),
        ("afl(rate=__import__('os').getpid())", "expected NAME.key=value"),
        ("afl(rate=10**9)", "expected NAME.key=value"),
        ("afl(**{'rate': 1})", "expected NAME.key=value"),
        ("afl(rate=1)(rate=2)", "expected NAME.key=value"),
        ("afl(rate=1, rate=2)", "expected rate once"),
        ("afl(" + "(" * 9999 + ")", "expected NAME"),
        ("afl; import os", "expected NAME or NAME"),
    ],
)
def test_a_bad_text_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse(text)


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("afl", {"rat": 1}, "'afl' has no argument 'rat': expected rate, .*did you mean 'rate'"),
        ("ind", {}, "'ind' needs site: expected ind.site=...."),
        ("fedavg", {"local_steps": True}, "local_steps=True: expected a whole number"),
        ("fedavg", {"local_steps": 1.5}, "local_steps=1.5: expected a whole number"),
        ("fedavg", {"local_steps": 0}, "local_steps=0: expected a whole number of at least 1"),
        ("fedavg", {"prior": 0.5}, "prior=0.5: expected a string or a list of numbers or None"),
        ("fedavg", {"prior": [1, "2"]}, "prior=.*: expected a string or a list of numbers"),
        ("fedavg", {"prior": [0.1] * 100_001}, "prior=.*: expected a string or a list of numbers"),
        ("afl", {"average": 1}, "average=1: expected True or False"),
        ("afl", {"rate": float("nan")}, "rate=nan: expected a number or None"),
        ("afl", {"rate": 10**400}, "rate=1000.*: expected a number or None"),
        ("afl", {"rate": {"a": 1}}, "rate=.*: expected a number or None"),
        ("aspire", {"preset": "papr"}, "preset='papr': expected one of auto, paper"),
        ("aspire", {"uncertainty": "simplex"}, "uncertainty='simplex': expected None"),
        ("direct", {"optimizer": "adam"}, "optimizer='adam': expected None"),
        ("afl", {"optimizer": "adm"}, "optimizer='adm': expected 'adam', 'momentum', a function"),
        ("afl", {"optimizer": 3}, "optimizer=3: expected a string or None"),
        ("afl", {"schedule": "linear"}, "schedule='linear': expected None"),
        ("ind", {"site": 0, "clip": 1}, "'ind' has no argument 'clip'"),
        (3, {}, "method=3: expected one of afl"),
    ],
)
def test_a_bad_argument_is_one_sentence(name: Any, arguments: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        make(name, arguments)
    assert len(str(caught.value)) < 400


def test_objects_are_passed_and_whole_numbers_are_whole() -> None:
    method = make("fedavg", {"local_steps": 3.0})
    assert method.settings["local_steps"] == 3
    assert isinstance(method.settings["local_steps"], int)
    assert make("gdmax", uncertainty=Simplex()).settings["uncertainty"] == Simplex()
    made = make("direct", {"quorum": 2}, optimizer=torch.optim.SGD)
    assert made.settings["optimizer"] == "SGD"
    assert make("afl", optimizer=torch.optim.SGD).settings["optimizer"] == "SGD"
    with pytest.raises(ValueError, match="'central' has no argument 'optimizer'"):
        make("central", optimizer=torch.optim.SGD)
    assert takes("direct", "quorum")
    assert not takes("afl", "staleness")


@pytest.mark.parametrize("name", list(ROWS))
def test_a_site_makes_the_same_workers_from_a_name_and_a_map(name: str) -> None:
    """To the bit, with a map that has been text on the way; the rest of the arguments stay."""
    method = ROWS[name]()
    sent = json.loads(json.dumps(method.site_arguments))
    site = at_site(method.name, sent)
    assert site.kinds == method.kinds
    assert site.site_arguments == method.site_arguments
    problem = blob_problem(3, batch_size=4)
    boards = [
        Board(made, problem.sites, problem.flat.start)
        for made in (method, replace(method, work=site.work))
    ]
    for n in range(12):
        for board in boards:
            waiting = sorted(board.hands)
            board.turn(waiting[(5 * n) % len(waiting)])
    assert same(boards[0].master, boards[1].master)


def test_every_method_is_in_the_table_and_known_by_its_own_name() -> None:
    made = {ROWS[name]().name for name in ROWS}
    assert {factory_of(name) for name in made} | {consensus} == set(METHODS.values())


def test_a_site_takes_no_arguments_of_the_master() -> None:
    with pytest.raises(ValueError, match="'aspire' at a site with quorum: expected local_steps, p"):
        at_site("aspire", {"quorum": 3})
    with pytest.raises(ValueError, match="'direct' at a site with reference: expected local_steps"):
        at_site("direct", {"reference": [0.0] * 9})
    assert direct(reference=[1.0], clip=2.0, learning_rate=0.1).site_arguments == {
        "local_steps": 1,
        "accumulate": 1,
        "clip": 2.0,
    }


def test_limits_of_its_own_have_no_name() -> None:
    """Such a preset would clip otherwise at a site, so the method says that it cannot be sent."""
    assert aspire(preset=Paper(eta_w=0.1)).site_arguments == {"local_steps": 1, "preset": "paper"}
    assert aspire(preset=Paper(limits=Limits(a1=5.0))).site_arguments is None
    bounded = aspire(preset="paper", pull_bound=float("inf")).site_arguments
    assert bounded is not None
    assert at_site("aspire", json.loads(json.dumps(bounded))).kinds == (
        aspire(preset="paper", pull_bound=10.0).kinds
    )
