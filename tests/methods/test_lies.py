"""Reports that are in their ranges and false: no method raises, and what a minority can do ends.

The liars are drawn anew for every number of sites from one up, so that medians of one and of two
sites, and liars who are the majority, occur as well.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aspire.methods import aspire
from aspire.protocol import HUGE, LARGEST, RANGES, out_of_range
from aspire.types import Joined, Kind, Left, Method, Refused, Report, Task
from tests.helpers import Board, Quadratic
from tests.methods.table import ROWS, STEADY

START = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
LOSSES = (0.0, 1e-300, 1.0, 1e6, LARGEST, -1e-300, -1.0, -LARGEST)
POSITIVE = (0.0, 1e-300, 1e-12, 1.0, 1e6, 1e12, HUGE)
SIZES = (0.0, 1e-300, 1.0, 1e6, LARGEST)


def sites(n: int) -> list[Quadratic]:
    return [Quadratic((j, -j, 1.0), 1.0 + j, 0.5) for j in range(n)]


def lie(task: Task, kind: Kind, rng: np.random.Generator) -> Report:
    """A report on this task that nobody can refuse."""

    def number(name: str) -> float:
        if name == "gradients":
            return float(rng.integers(0, kind.most_gradients + 1))
        if name in ("samples", "loss_samples"):
            return float(rng.choice((0.0, 1.0, LARGEST)))
        low = RANGES.get(name, (-HUGE, HUGE))[0]
        return float(rng.choice(POSITIVE if low == 0.0 else LOSSES))

    optional = [name for name in kind.optional if rng.integers(2)]
    scalars = {n: number(n) for n in ("gradients", "samples", *kind.scalars, *optional)}
    signs = torch.from_numpy(rng.choice((-1.0, 1.0), len(START)))
    vectors = {name: float(rng.choice(SIZES)) * signs for name in kind.vectors}
    return Report(task.worker, task.id, vectors, scalars)


def played(method: Method, n: int, liars: int, seed: int, count: int, movers: int) -> Board:
    """The first `liars` sites lie; of the first `movers` one leaves or returns now and then.

    It ends where a run would: a task is out of range, or an honest site cannot answer any more.
    """
    rng, board = np.random.default_rng(seed), Board(method, sites(n), START)
    away: set[int] = set()
    for turn in range(count):
        if movers and n > 1 and turn % 11 == 10:
            j = int(rng.integers(movers))
            board.hands.pop(j, None)
            board.absorb(Joined(j) if j in away else Left(j))
            away ^= {j}
        if not board.hands or len(away) == n:
            break
        j = int(rng.choice(sorted(board.hands)))
        task = board.hands[j]
        if out_of_range(task) is not None:
            break
        if j < liars:
            board.hands.pop(j)
            infos = board.absorb(lie(task, method.kinds[task.kind], rng))
            assert not any(isinstance(info, Refused) for info in infos), infos
        elif any(isinstance(info, Refused) for info in board.turn(j)):
            break
    return board


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ROWS)
def test_no_method_raises_whatever_the_liars_say(name: str, n: int) -> None:
    for liars in range(1, n + 1):
        for seed in range(2):
            method = ROWS[name]()
            try:
                Board(method, sites(n), START)
            except ValueError:
                pytest.skip("needs more sites")
            with np.errstate(all="ignore"):
                played(method, n, liars, seed, 40, 0 if name in STEADY else n)


@pytest.mark.parametrize("n", [3, 4, 5])
@pytest.mark.parametrize("local_steps", [1, 3])
def test_one_liar_leaves_every_task_in_its_range(n: int, local_steps: int) -> None:
    """With the bound on the pull, as in a federation; nobody honest is refused."""
    for seed in range(4):
        method = aspire(pull_bound=10.0, local_steps=local_steps)
        board = played(method, n, 1, seed, 120, seed % 2)
        assert board.master.t > 80
        assert not any(isinstance(info, Refused) for info in board.infos)
        for task in board.hands.values():
            assert out_of_range(task) is None, (seed, task)
