"""Odd inputs, one by one: each is trained on, or named in one short sentence with what to do."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from aspire import Absence, Auto, LogNormal, Paper, aspire, train
from aspire.methods import afl, fedavg
from aspire.sets import CDNorm
from tests.helpers import blobs, linear

QUICK = {"iterations": 4, "batch_size": 8, "evaluate_every": 2}
X, Y = blobs(1)["s0"]["train"]  # 30 samples of 3 numbers, 2 classes
REAL = X[:, :1] + 1.0
OK = None


class Frame:
    """As much of a DataFrame as is looked at."""

    def __init__(self, values, columns):
        self.values, self.columns = values, columns

    @property
    def shape(self):
        return self.values.shape

    def __len__(self):
        return len(self.values)

    def to_numpy(self):
        return self.values


class Items(Dataset):
    """Whatever this function gives."""

    def __init__(self, item, size=30):
        self.item, self.size = item, size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        return self.item(i)


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(X, Y, strict=True)


class Endless(Dataset):
    def __getitem__(self, i):
        return X[i], Y[i]


class Model(nn.Module):
    """A linear layer with something after it."""

    def __init__(self, after=lambda x: x, before=lambda x: x):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.before, self.after = nn.Linear(3, 2), before, after

    def forward(self, x):
        return self.after(self.layer(self.before(x)))


def changed(x, value, at=(4, 1)):
    x = x.clone()
    x[at] = value
    return x


def items(x=X, y=Y):
    return Items(lambda i: (x[i], y[i]))


def objects(values):
    return np.array(values, dtype=object)


PAIR = namedtuple("PAIR", "inputs targets")
STRINGS = np.array(["cat", "dog"] * 15)
LINEAR = partial(linear, outputs=1)

# What is given as `sites`, and how the sentence about it begins or what it holds; OK: it trains.
SITES = {
    "None": (None, "sites=None: expected a list of sites"),
    "a number": (5, "sites=5: expected a list"),
    "a string": ("abc", "sites is a str: expected a list"),
    "a tensor": (X, "sites is a Tensor: expected a list"),
    "an array": (X.numpy(), "sites is a ndarray: expected a list"),
    "a Dataset": (items(), "sites is an Items: expected a list"),
    "a DataLoader": (DataLoader(items()), "sites is a DataLoader: expected a list"),
    "empty list": ([], "sites is empty"),
    "empty mapping": ({}, "sites is empty"),
    "empty generator": ((x for x in ()), "sites is empty"),
    "a set of numbers": ({1, 2}, "site 0 is an int"),
    "one pair": ((X, Y), r"sites is one pair of arrays: expected .* \[\(x, y\)\]"),
    "a list of tensors": ([X, Y], "site 0 is a Tensor"),
    "a site of None": ([None], "site 0 is None: expected"),
    "a site of one": ([(X,)], "site 0 is a tuple of 1: expected"),
    "a site of three": ([(X, Y, Y)], "site 0 is a tuple of 3: expected"),
    "a string as site": (["ab"], "site 0 is a str"),
    "a name and a site": ([("a", (X, Y))], r"site 0 begins with 'a'.* a mapping, \{name: site\}"),
    "a module as site": ([nn.Linear(3, 2)], "site 0 is a Linear"),
    "a class as site": ([Items], "site 0 is the class Items"),
    "a DataLoader as site": ([DataLoader(items())], OK),
    "a DataLoader that chooses": (
        [DataLoader(items(), sampler=SubsetRandomSampler([1, 2]))],
        r"a sampler of its own.*Subset\(dataset, indices\)",
    ),
    "an IterableDataset": ([Stream()], OK),
    "a Dataset without a length": ([Endless()], "Endless without a length: expected a map-style"),
    "two Datasets": ([(items(), items())], "a Dataset in it: expected .*'train'"),
    "two pairs": ([((X, Y), (X, Y))], "site 0: targets are .*: expected numbers"),
    "misspelt part": ({"a": {"trian": (X, Y)}}, r"\['trian'\].* did you mean 'train'\?"),
    "only a test part": ({"a": {"test": (X, Y)}}, r"\['test'\]: expected 'train'"),
    "odd parts": ({"a": {1: (X, Y), "b": 2}}, r"\[1, 'b'\]: expected 'train'"),
    "nested parts": ({"a": {"train": {"train": (X, Y)}}}, r"site 'a' \(train\) is a dict"),
    "a part of None": ({"a": {"train": None}}, r"site 'a' \(train\) is None"),
    "an empty test part": ({"a": {"train": (X, Y), "test": ()}}, r"\(test\) is a tuple of 0"),
    "no test part": ({"a": {"train": (X, Y), "test": None}}, OK),
    "no samples": ([(X[:0], Y[:0])], "site 0 is empty"),
    "unlike lengths": ([(X, Y[:9])], "site 0 has 30 inputs and 9 targets"),
    "unlike names": ({1: (X, Y), "1": (X, Y)}, "sites has two sites named '1'"),
    "a long name": ({"n" * 500: (X, Y)}, r"sites has the name 'n+\.\.\.n+': expected a short"),
    "a name of two lines": ({"a\nb": (X, Y)}, r"sites has the name 'a\\nb': expected"),
    "a tensor as name": ({X: (X, Y)}, "sites has the name 'tensor.*: expected a short one"),
    "a generator": (((X, Y) for _ in range(2)), OK),
    "a view of a mapping": ({"a": (X, Y)}.values(), OK),
    "an ordered mapping": (OrderedDict(a=(X, Y)), OK),
    "a tuple of sites": (((X, Y), (X, Y)), OK),
    "a named tuple": ([PAIR(X, Y)], OK),
    # ------------------------------------------------ tensors
    "numbers without an axis": ([(torch.tensor(1.0), torch.tensor(1))], "inputs are one number"),
    "lists": ([(X.tolist(), Y.tolist())], OK),
    "lists of numpy numbers": ([(list(X.numpy()), list(Y.numpy()))], OK),
    "ragged lists": ([([[1.0], [1.0, 2.0]], [0, 1])], "inputs are .*: expected numbers"),
    "a list of tensors as inputs": ([(list(X), Y)], OK),
    "a mapping as inputs": ([({"input": X}, Y)], OK),
    "a mapping of other names": ([({"x": X}, Y)], r"model\(\*\*inputs\): expected .* to take x"),
    "None as targets": ([(X, None)], "targets are None"),
    "a string as targets": ([(X, "01" * 15)], "targets are a str"),
    "strings": ([(X, STRINGS.tolist())], "targets are .*: expected numbers"),
    "an array of strings": ([(X, STRINGS)], "targets hold other things than numbers"),
    "dates": ([(X, np.zeros(30, "datetime64[s]"))], "targets hold other things than numbers"),
    "objects": ([(objects(X.tolist()), objects(Y.tolist()))], OK),
    "objects that are no numbers": ([(objects([["a"]] * 30), Y)], "inputs hold other things"),
    "masked": ([(np.ma.masked_less(X.numpy(), 0), Y)], r"inputs are masked in \d+ places"),
    "masked nowhere": ([(np.ma.masked_array(X.numpy()), Y)], OK),
    "backwards": ([(X.numpy()[::-1], Y)], OK),
    "another byte order": ([(X.numpy().astype(">f4"), Y)], OK),
    "read-only": ([(np.broadcast_to(np.float32(1.0), (30, 3)), Y)], OK),
    "long double": ([(X.numpy().astype(np.longdouble), Y)], OK),
    "unsigned": ([(X.numpy(), Y.numpy().astype(np.uint16))], OK),
    "sparse": ([(X.to_sparse(), Y)], r"inputs are not dense .* x\.to_dense\(\)"),
    "sparse targets": ([(X, Y.to_sparse())], "targets are not dense"),
    "quantized": ([(torch.quantize_per_tensor(X, 0.1, 0, torch.qint8), Y)], r"x\.dequantize\(\)"),
    "on no device": ([(X.to("meta"), Y)], "inputs are not dense .on no device."),
    "complex": ([(X.to(torch.complex64), Y)], "do not take inputs of shape .* complex64"),
    "float64": ([(X.double(), Y)], OK),
    "float16": ([(X.half(), Y)], OK),
    "whole numbers": ([((10 * X).long(), Y)], OK),
    "truth values as inputs": ([(X > 0, Y)], OK),
    "with a gradient": ([(X.clone().requires_grad_() * 2, Y)], OK),
    "int32 labels": ([(X, Y.int())], OK),
    "truth values as targets": ([(X, Y.bool())], OK),
    "a column of labels": ([(X, Y[:, None])], OK),
    "real labels": ([(X, Y.float())], r"use targets\.long\(\)"),
    "two columns of labels": ([(X, Y[:, None].repeat(1, 2))], r"use targets\.float\(\)"),
    "probabilities": ([(X, F.one_hot(Y).double())], OK),
    "one sample": ([(X[:1], Y[:1])], OK),
    "a frame": ([(Frame(X.double().numpy(), list("abc")), Frame(Y.numpy()[:, None], ["y"]))], OK),
    "a frame of strings": ([(Frame(objects([[1, "u", 2]] * 30), list("abc")), Y)], "column 'b'"),
    "a frame as site": ([Frame(X.numpy(), list("abc"))], "site 0 is a Frame"),
    "wide": ([(torch.cat([X, X], 1), Y)], "do not take inputs of shape .8, 6."),
    "flat inputs": ([(X[:, 0], Y)], "do not take inputs of shape .8,."),
    "a narrow test part": ({"a": {"train": (X, Y), "test": (X[:, :2], Y)}}, r"'a' \(test\): the"),
    "NaN": ({"a": (changed(X, torch.nan), Y)}, r"in 1 of 30 samples \(column 1; .* number 4\)"),
    "infinite": ({"a": (changed(X, -torch.inf), Y)}, "site 'a': inputs are NaN or infinite"),
    "NaN in a frame": ([(Frame(changed(X, torch.nan).numpy(), list("abc")), Y)], "column 'b'"),
    "NaN in images": ([(changed(X, torch.nan).view(30, 3, 1), Y)], "do not take|1 of 30 samples"),
    "NaN in a test part": (
        {"a": {"train": (X, Y), "test": (changed(X, torch.nan), Y)}},
        r"site 'a' \(test\): inputs are NaN or infinite in 1 of 30",
    ),
    "a class too high": ([(X, changed(Y, 2, 29))], r"targets run from 0 to 2: expected 0 to 1"),
    "a negative class": ([(X, changed(Y, -1, 29))], r"targets run from -1 to 1: expected 0 to 1"),
    "a class too high in a test part": (
        {"a": {"train": (X, Y), "test": (X, changed(Y, 7, 29))}},
        r"site 'a' \(test\): targets run from 0 to 7: expected 0 to 1",
    ),
    # ------------------------------------------------ Datasets
    "an empty Dataset": ([Items(lambda i: 0, 0)], "site 0 is empty"),
    "a TensorDataset": ([TensorDataset(X, Y)], OK),
    "parts of Datasets": ([Subset(ConcatDataset([items(), items()]), range(40))], OK),
    "a Dataset of numpy": ([Items(lambda i: (X[i].double().numpy(), int(Y[i])))], OK),
    "a Dataset of inputs alone": ([TensorDataset(X)], "gives a tuple of 1: expected a pair"),
    "a Dataset of tensors": ([Items(lambda i: X[i])], "gives a Tensor: expected a pair"),
    "a Dataset of three": ([TensorDataset(X, Y, Y)], "gives a tuple of 3: expected a pair"),
    "a Dataset of mappings": ([Items(lambda i: {"x": X[i], "y": Y[i]})], "gives a dict"),
    "a Dataset of None": ([Items(lambda i: (None, Y[i]))], "do not go into one batch"),
    "unlike shapes": ([Items(lambda i: (X[i, : 1 + i % 3], Y[i]))], "do not go into one batch"),
    "a Dataset that raises": (
        [Items(lambda i: (X[i], {}[i]))],
        "Dataset raised KeyError.*line",
    ),
    "a Dataset with NaN": ([items(changed(X, torch.nan))], "NaN or infinite in 1 of 30"),
    "a Dataset with a class too high": ([items(X, changed(Y, 5, 20))], "targets run from 0 to 5"),
    "a Dataset of strings": ([Items(lambda i: (X[i], "cat"))], "targets are a"),
}


def one_sentence(error) -> str:
    text = str(error)
    assert "\n" not in text
    assert len(text) < 700
    assert len(text) < 260 or "tensor(" not in text
    return text


@pytest.mark.parametrize(("sites", "sentence"), SITES.values(), ids=SITES.keys())
def test_sites(sites, sentence):
    if sentence is OK:
        train(linear(), sites, **QUICK)
        return
    with pytest.raises(ValueError, match=sentence) as caught:
        train(linear(), sites, **QUICK)
    one_sentence(caught.value)


def spoilt():
    model = linear()
    nn.init.constant_(model.bias, torch.nan)
    return model


def no_grad(x):
    with torch.no_grad():
        return x * 2


MODELS = {
    "None": (None, "model=None: expected a torch.nn.Module"),
    "a class": (nn.Linear, "model=<class Linear>.*an instance"),
    "a function": (lambda x: x, "model=<function .*: expected a torch.nn.Module"),
    "a tensor": (X, r"model=<Tensor of shape \(30, 3\)>"),
    "no parameters": (nn.ReLU(), "model has no parameter"),
    "frozen": (linear().requires_grad_(False), "model has no parameter"),
    "lazy": (nn.LazyLinear(2), OK),
    "meta": (nn.Linear(3, 2, device="meta"), "on a real device"),
    "complex": (nn.Linear(3, 2, dtype=torch.complex64), "expected one real type"),
    "mixed": (nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2).double()), "expected one real type"),
    "NaN": (spoilt(), "model has NaN or infinite values in bias"),
    "a tuple": (Model(lambda x: (x, x)), "model gives a tuple: expected a tensor"),
    "a mapping": (Model(lambda x: {"out": x}), "model gives a dict: expected a tensor"),
    "nothing": (Model(lambda x: None), "model gives None: expected a tensor"),
    "one number": (Model(lambda x: x.sum()), "expected .samples, classes."),
    "no gradient": (Model(no_grad), "the loss does not depend on the model's parameters"),
    "classes alone": (Model(lambda x: x.argmax(1).float()[:, None].repeat(1, 2)), "argmax"),
    "wrong width": (linear(inputs=7), "do not take inputs of shape .8, 3. and type float32"),
    "raises": (Model(lambda x: 1 / 0), r"raised ZeroDivisionError: .* \(.*inputs\.py, line \d+"),
    "exits": (Model(lambda x: exit(3)), r"the model raised SystemExit: 3 \(.*line"),
    "a long error": (Model(lambda x: [][int(x.sum() * 0) + int("9" * 400)]), "the model raised"),
    "float64": (linear().double(), OK),
    "casts by itself": (Model(before=lambda x: x.float()), OK),
}
LOSSES = {
    "None": (None, "loss=None: expected one of cross_entropy, mse, bce, or a callable"),
    "a number": (5, "loss=5: expected one of"),
    "misspelt": ("crossentropy", "loss='crossentropy'.* did you mean 'cross_entropy'"),
    "a class": (nn.CrossEntropyLoss, r"loss=<class CrossEntropyLoss>.*CrossEntropyLoss\(\)"),
    "one a sample": (nn.CrossEntropyLoss(reduction="none"), r"shape \(8,\).*reduction='mean'"),
    "a sum": (nn.CrossEntropyLoss(reduction="sum"), "expected a mean"),
    "a Python number": (lambda o, t: F.cross_entropy(o, t).item(), "the loss gave a float: .*mean"),
    "nothing": (lambda o, t: None, "the loss gave None"),
    "a pair": (lambda o, t: (o.sum(), t), "the loss gave a tuple"),
    "NaN": (lambda o, t: o.sum() * torch.nan, "the loss at the start is nan"),
    "three arguments": (lambda o, t, w: o.sum(), "the loss raised TypeError"),
    "a number of its own": (lambda o, t: torch.ones((), requires_grad=True), "gradient raised"),
    "detached": (lambda o, t: F.cross_entropy(o.detach(), t), "no detach"),
    "raises": (lambda o, t: {}["x"], r"the loss raised KeyError: 'x' \(.*line \d+"),
}
SOME = [(X, Y), (X, 1 - Y)]


@pytest.mark.parametrize(("model", "sentence"), MODELS.values(), ids=MODELS.keys())
def test_models(model, sentence):
    if sentence is OK:
        train(model, SOME, **QUICK)
        return
    with pytest.raises(ValueError, match=sentence) as caught:
        train(model, SOME, **QUICK)
    one_sentence(caught.value)


@pytest.mark.parametrize(("loss", "sentence"), LOSSES.values(), ids=LOSSES.keys())
def test_losses(loss, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        train(linear(), SOME, loss=loss, **QUICK)
    one_sentence(caught.value)


WHOLE = "expected a whole number"
ARGUMENTS = {
    "iterations": [
        (0, "iterations=0: " + WHOLE),
        (-1, "iterations=-1: " + WHOLE),
        (1.5, "iterations=1.5: " + WHOLE),
        ("10", "iterations='10': " + WHOLE),
        (torch.nan, "iterations=nan: " + WHOLE),
        (torch.inf, "iterations=inf: " + WHOLE),
        (True, "iterations=True: " + WHOLE),
        ([3], r"iterations=\[3\]: " + WHOLE),
        (3.0, OK),
        (np.int64(3), OK),
    ],
    "gradients": [(0, "gradients=0"), ("x", "gradients='x'")],
    "batch_size": [
        (0, "batch_size=0: " + WHOLE),
        (-1, "batch_size=-1: " + WHOLE),
        (2.5, "batch_size=2.5: " + WHOLE),
        ("8", "batch_size='8': " + WHOLE),
        (1000, OK),
        (None, OK),
    ],
    "seed": [
        (-1, "seed=-1: " + WHOLE),
        (None, "seed=None: " + WHOLE),
        ("0", "seed='0': " + WHOLE),
        (2**70, "seed=1180591620717411303424: " + WHOLE),
        (2**63 - 1, OK),
    ],
    "quorum": [
        (0, "quorum=0: " + WHOLE),
        (3, "quorum=3: expected at most the 2 sites"),
        ("all", "quorum='all': " + WHOLE),
    ],
    "staleness": [(0, "staleness=0: " + WHOLE), ("x", "staleness='x': " + WHOLE)],
    "local_steps": [(0, "local_steps=0: " + WHOLE), (None, "local_steps=None: " + WHOLE)],
    "pull_bound": [
        (0, "pull_bound=0: expected a positive"),
        ("x", "pull_bound='x'"),
        (torch.nan, "pull_bound=nan"),
    ],
    "weight_decay": [
        (-1, "weight_decay=-1: expected a number of at least 0"),
        (torch.nan, "weight_decay=nan: expected"),
        ("x", "weight_decay='x': expected"),
        (None, "weight_decay=None: expected"),
    ],
    "evaluate_every": [(-1, "evaluate_every=-1: " + WHOLE), ("x", "evaluate_every='x'"), (0, OK)],
    "uncertainty": [
        (0.5, "uncertainty=0.5: expected a set of aspire.sets"),
        (CDNorm, "uncertainty=<class CDNorm>: expected"),
        (CDNorm(np.ones(3) / 3, 0.1, 1.0), "this set is over 3 sites, got 2"),
        (CDNorm(radius=0.1, budget=1.0), OK),
    ],
    "method": [
        ("afl", r"method='afl': expected a method of aspire.methods, such as afl\(\)"),
        (afl, "method=<function afl>: expected"),
        (3, "method=3: expected"),
        (fedavg(rate=0.1), OK),
    ],
    "preset": [
        ("atuo", "preset='atuo'.*did you mean 'auto'"),
        (5, "preset=5: expected one of auto"),
        (Auto, "preset=<class Auto>: expected"),
        ("auto(steps=2)", r"preset='auto\(steps=2\)'"),
        (Paper(), OK),
    ],
    "delays": [
        (5, "delays=5: expected such as LogNormal"),
        (LogNormal, "delays=<class LogNormal>: expected"),
        (LogNormal(scale=(1.0, 2.0, 3.0)), "delays: scale has 3 entries: expected one for each"),
        (lambda seed, worker, n: -1.0, r"delays give \[.*expected numbers"),
        (lambda seed, worker: 1.0, "delays raised TypeError"),
        (lambda seed, worker, n: 1.0, OK),
    ],
    "absences": [
        ("x", "absences='x': expected a list of Absence"),
        (5, "absences=5: expected a list"),
        (Absence(0, 1.0), r"absences=Absence\(.*: expected a list"),
        ([0], "absences has 0: expected Absence"),
        ([Absence("a", 1.0)], "absence of worker 'a': expected 0 to 1"),
        ([Absence(2, 1.0)], "absence of worker 2: expected 0 to 1"),
    ],
    "device": [
        ("cuda:9", "device='cuda:9': expected a device that is here"),
        (5, "device=5: expected a string"),
        (None, "device=None: expected a string"),
        ("meta", "device='meta': expected"),
        (torch.device("cpu"), OK),
    ],
    "engine": [
        ("ray", r"engine='ray': expected an engine, such as Ray\(\)"),
        (LogNormal, "engine=<class LogNormal>: expected"),
    ],
    "out": [(5, "out=5: expected the path"), (["x"], r"out=\['x'\]: expected the path")],
    "log": [("x", "log='x': expected one of"), (5, "log=5: expected 'full'")],
    "stop": [(True, "stop=True: expected a function")],
    "progress": [
        ("bar", "progress='bar': expected True, a function, or None"),
        (X, r"progress=<Tensor of shape \(30, 3\)>: expected True"),
    ],
    "callbacks": [
        (5, "callbacks=5: expected a list"),
        ([LogNormal], "callbacks has the class LogNormal: expected objects with on_start"),
        ([print], "callbacks has a builtin_function_or_method: expected objects"),
    ],
    "checkpoint_seconds": [
        (-1, "checkpoint_seconds=-1: expected"),
        ("x", "checkpoint_seconds='x'"),
    ],
    "source": [("x", "source='x': expected a mapping")],
    "tensorboard": [(X, r"tensorboard=<Tensor of shape \(30, 3\)>: expected True")],
    "stationarity": [(None, "stationarity=None: expected True or False")],
    "patience": [(SOME, r"patience=\[\(<Tensor of .* belongs to an engine")],
    "min_sites": [("all", "min_sites='all' belongs to an engine")],
}
CASES = [(name, value, said) for name, pairs in ARGUMENTS.items() for value, said in pairs]


@pytest.mark.parametrize(
    ("name", "value", "sentence"), CASES, ids=[f"{c[0]} {i}" for i, c in enumerate(CASES)]
)
def test_arguments(name, value, sentence):
    arguments = QUICK | {name: value}
    if sentence is OK:
        train(linear(), SOME, **arguments)
        return
    with pytest.raises(ValueError, match=sentence) as caught:
        train(linear(), SOME, **arguments)
    one_sentence(caught.value)


PIECES = {
    "a prior that is no vector": (lambda: CDNorm("even", 0.1, 1.0), "prior must hold real numbers"),
    "a prior of many": (lambda: CDNorm(torch.rand(10000), 0.1, 1.0), "prior must sum to 1"),
    "a prior of two axes": (lambda: CDNorm(np.ones((100, 100)), 0.1, 1.0), "prior must be a vect"),
    "a delay of text": (lambda: LogNormal("x"), "mu='x': expected a number"),
    "a spread of text": (lambda: LogNormal(1.0, "x"), "sigma='x': expected a number"),
    "a scale of text": (lambda: LogNormal(scale="x"), "scale='x': expected positive"),
    "no scale": (lambda: LogNormal(scale=None), "scale=None: expected positive"),
    "an absence of text": (lambda: Absence(0, "soon"), "leaves='soon', returns=inf: expected 0"),
    "a quorum of text": (lambda: aspire(quorum="x"), "quorum='x': expected a whole number"),
    "a rate of text": (lambda: fedavg(rate="x"), "rate='x': expected a positive"),
}


@pytest.mark.parametrize(("make", "sentence"), PIECES.values(), ids=PIECES.keys())
def test_pieces(make, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        make()
    one_sentence(caught.value)


def test_there_are_enough_of_them():
    assert len(SITES) + len(MODELS) + len(LOSSES) + len(CASES) + len(PIECES) > 200


@pytest.mark.parametrize(
    ("name", "hint"),
    [("iteration", "'iterations'"), ("uncertanty", "'uncertainty'"), ("elsewhere", None)],
)
def test_an_unknown_argument_is_one_of_train(name, hint):
    meant = "" if hint is None else f"; did you mean {hint}\\?"
    with pytest.raises(TypeError, match=rf"^train\(\) got an unexpected argument '{name}'{meant}"):
        train(linear(), SOME, **QUICK, **{name: 3})
