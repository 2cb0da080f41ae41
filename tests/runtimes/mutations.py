"""Checkpoints that hold something else than a run's state, with checksums that fit all the same."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import save_file

from aspire.runs import checkpoint
from aspire.runs.checkpoint import FORMAT, TREE, Tensors

Spot = tuple[Any, Any]  # a container in the tree, and the key or index of something in it
DEEP = "very deep"  # stands for lists in lists
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 7, 2**31, 2**53, 2**63, -(2**64), 10**400),
    *(0.0, -0.5, 1e-300, 1e308, -1e308, float("nan"), float("inf"), "", "x", "step", "probe"),
    *([], {}, [1, 2], DEEP, {"list": []}, {"list": 3}, {"tuple": []}, {"dict": []}),
    *({"dict": [[1]]}, {"dict": [[{"list": []}, 1]]}, {"tensor": "0"}, {"array": "1"}),
    *({"tensor": "no"}, {"tensor": 3}, {"class": "aspire.__main__:main", "fields": {}}),
    *({"class": "aspire.types:Left", "fields": {"worker": 0}}, {"class": 3, "fields": 3}),
]


def spots(tree: Any) -> list[Spot]:
    """Every place in a tree."""
    found: list[Spot] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node))
        for key in keys:
            found.append((node, key))
            if isinstance(node[key], dict | list):
                waiting.append(node[key])
    return found


# ---------------------------------------------------------------- of the tree


def replaced(rng: Random, tree: Any) -> None:
    node, key = rng.choice(spots(tree))
    node[key] = copy.deepcopy(rng.choice(VALUES))


def number_changed(rng: Random, tree: Any) -> None:
    numbers = [(n, k) for n, k in spots(tree) if type(n[k]) in (int, float)]
    node, key = rng.choice(numbers)
    with_others = [node[key] + 1, node[key] - 1, -node[key], 3 * node[key], node[key] + 0.5]
    node[key] = rng.choice([*with_others, *VALUES[:17]])


def removed(rng: Random, tree: Any) -> None:
    node, key = rng.choice(spots(tree))
    del node[key]


def doubled(rng: Random, tree: Any) -> None:
    lists = [(n, k) for n, k in spots(tree) if isinstance(n[k], list) and n[k]]
    node, key = rng.choice(lists)
    node[key].append(copy.deepcopy(rng.choice(node[key])))


def swapped(rng: Random, tree: Any) -> None:
    (a, i), (b, j) = rng.sample(spots(tree), 2)
    a[i], b[j] = copy.deepcopy(b[j]), copy.deepcopy(a[i])


def renamed(rng: Random, tree: Any) -> None:
    named = [(n, k) for n, k in spots(tree) if isinstance(n, dict)]
    node, key = rng.choice(named)
    node[rng.choice(["x", "list", "tensor", "fields", key.upper()])] = node.pop(key)


# ---------------------------------------------------------------- of the tensors


def _one(rng: Random, tensors: Tensors) -> str:
    return rng.choice(sorted(tensors))


def reshaped(rng: Random, tensors: Tensors) -> None:
    name = _one(rng, tensors)
    x = tensors[name]
    ways: list[Callable[[], Any]] = [lambda: x[None], lambda: x.reshape(-1), lambda: x.new_zeros(0)]
    ways += [lambda: x.reshape(-1)[:1], lambda: x.new_zeros(()), lambda: torch.cat([x, x])]
    tensors[name] = rng.choice(ways)().clone() if x.ndim else x[None].clone()


def retyped(rng: Random, tensors: Tensors) -> None:
    name = _one(rng, tensors)
    kinds = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool]
    tensors[name] = tensors[name].to(rng.choice([*kinds, torch.uint8, torch.int32]))


def filled(rng: Random, tensors: Tensors) -> None:
    name = _one(rng, tensors)
    x = tensors[name]
    value: Any = rng.choice([0, 1, -1, 5, 100])
    if x.is_floating_point():
        value = rng.choice([value, float("nan"), float("inf"), 1e30, -1e30, 1e-30])
    elif x.dtype == torch.int64:
        value = rng.choice([value, 2**62, -(2**63), 2**31])
    every = torch.full_like(x, value)
    tensors[name] = torch.where(torch.rand(x.shape) < rng.choice([0.2, 1.0]), every, x)


def lost(rng: Random, tensors: Tensors) -> None:
    del tensors[_one(rng, tensors)]


def added(rng: Random, tensors: Tensors) -> None:
    tensors[rng.choice(["x", "999", ""])] = torch.zeros(3)


def exchanged(rng: Random, tensors: Tensors) -> None:
    a, b = rng.sample(sorted(tensors), 2)
    tensors[a], tensors[b] = tensors[b], tensors[a]


TREES = (replaced, number_changed, number_changed, removed, doubled, swapped, renamed)
TENSORS = (reshaped, retyped, filled, filled, lost, added, exchanged)


def mutated(rng: Random, tree: Any, tensors: Tensors) -> tuple[Any, Tensors]:
    """One to three changes."""
    tree, tensors = copy.deepcopy(tree), dict(tensors)
    torch.manual_seed(rng.randrange(2**31))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if rng.random() < 0.7:
            rng.choice(TREES)(rng, tree)
        else:
            rng.choice(TENSORS)(rng, tensors)
    return tree, tensors


def written(path: Path, tree: Any, tensors: Tensors) -> None:
    """A checkpoint file whose checksum fits."""
    nested = "[" * 100_000 + "]" * 100_000
    text = json.dumps(tree).replace(json.dumps(DEEP), nested).encode()
    whole = {**tensors, TREE: torch.frombuffer(bytearray(text), dtype=torch.uint8)}
    whole = {name: x.contiguous() for name, x in whole.items()}
    header = {"format": FORMAT, "t": "0", "sha256": checkpoint._checksum(whole)}
    path.unlink(missing_ok=True)
    save_file(whole, str(path), metadata=header)
