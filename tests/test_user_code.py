"""What users write: FILE.py, modules beside it, and a model, a loss and a Dataset that raise."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.utils.data import Dataset

from aspire import train
from aspire.api.user_file import job_of, load, read
from aspire.cli import main
from aspire.methods import fedavg
from aspire.problem.failures import Failed, calling, failed
from tests.helpers import blobs, linear

QUICK = {"iterations": 40, "batch_size": 8, "evaluate_every": 10}
FILE = """
import torch

def model():
    return torch.nn.Linear(3, 2)

def sites():
    return ["a", "b"]

def site(name):
    draw = torch.Generator().manual_seed(ord(name))
    x = torch.randn(40, 3, generator=draw)
    return x, (x[:, 0] > 0).long()
"""
OPTIONS = {"seed": 0, "batch_size": 8, "iterations": 10}


def call(*arguments) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


# ---------------------------------------------------------------- code that raises


class Late(nn.Module):
    """A linear layer that raises when it has been called so many times."""

    def __init__(self, calls):
        super().__init__()
        self.layer, self.calls, self.most = linear(), 0, calls

    def forward(self, x):
        self.calls += 1
        if self.calls > self.most:
            raise LookupError("what forward said")
        return self.layer(x)


class Rows(Dataset):
    """Whose last row cannot be read more than once."""

    def __init__(self):
        self.x, self.y = blobs(1)["s0"]["train"]
        self.read = 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        self.read += i == len(self.x) - 1
        if self.read > 3:
            raise LookupError("what the row said")
        return self.x[i], self.y[i]


def slow_loss(calls):
    counted = []

    def loss(output, target):
        counted.append(1)
        if len(counted) > calls:
            raise LookupError("what the loss said")
        return nn.functional.cross_entropy(output, target)

    return loss


HERE = rf"\({__file__}, line \d+, in "


@pytest.mark.parametrize("method", [None, fedavg(rate=0.1)], ids=["aspire", "fedavg"])
def test_what_is_raised_in_mid_training_keeps_its_line(method):
    given = QUICK | {"method": method}
    with pytest.raises(ValueError, match=f"site 's[01]' .*model raised LookupError.*{HERE}forward"):
        train(Late(60), blobs(2), **given)
    with pytest.raises(ValueError, match=f"site 's[01]' .*loss raised LookupError.*{HERE}loss"):
        train(linear(), blobs(2), loss=slow_loss(60), **given)
    said = f"site 'r': __getitem__ of the Dataset raised LookupError.*{HERE}__getitem__"
    with pytest.raises(ValueError, match=said) as caught:
        train(linear(), {"r": Rows()}, **given)
    assert isinstance(caught.value.__cause__, LookupError)


def test_keyboard_interrupts_pass():
    class Held(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = linear()

        def forward(self, x):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(Held(), blobs(2), **QUICK)


def test_a_failure_travels_between_processes():
    import pickle

    class Odd(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one} " + "long " * 400)

        def __reduce__(self):
            raise TypeError("not to be pickled")

    with pytest.raises(Failed) as caught, calling("the model"):
        raise Odd("1\n", 2)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert "the model raised Odd: 1 long long" in str(again)
    assert "\n" not in str(again)
    assert len(str(again)) < 600
    assert "Traceback" in again.trace
    assert str(failed("x", Exception())) == "x raised Exception"


LATE = FILE.replace(
    "    return torch.nn.Linear(3, 2)\n",
    """    class Late(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.calls = torch.nn.Linear(3, 2), 0

        def forward(self, x):
            self.calls += 1
            if self.calls > 60:
                raise LookupError("what forward said")  # line 13
            return self.layer(x)

    return Late()
""",
)


def test_the_whole_traceback_is_shown_on_request(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(LATE)
    code, text = call("train", file)
    assert code == 2
    line = 1 + LATE[: LATE.index("raise LookupError")].count("\n")
    assert f"the model raised LookupError: what forward said ({file}, line {line}, in forw" in text
    assert "Traceback" not in text
    code, text = call("-v", "train", file)
    assert code == 2
    assert "Traceback (most recent call last)" in text
    assert "# line 13" in text
    file.write_text(FILE.replace("return torch.nn.Linear(3, 2)", "return 1 / 0"))
    code, text = call("train", file)
    assert f"model() raised ZeroDivisionError: division by zero ({file}, line 5, in model)" in text
    assert "Traceback" not in text
    assert "return 1 / 0" in call("-v", "train", file)[1]


EXITS = {
    "at the top": "import sys\nsys.exit('no data here')\n" + FILE,
    "with a code": "raise SystemExit(0)\n" + FILE,
    "by argparse": "import argparse\nargparse.ArgumentParser().parse_args(['--x'])\n" + FILE,
    "in model()": FILE.replace("return torch.nn.Linear(3, 2)", "exit()"),
    "in site()": FILE.replace("    draw =", "    raise SystemExit\n    draw ="),
    "in sites()": FILE.replace('return ["a", "b"]', "raise SystemExit(1)"),
    "in a generator": FILE.replace('return ["a", "b"]', "yield 'a'\n    raise SystemExit(1)"),
}


@pytest.mark.parametrize("text", EXITS.values(), ids=EXITS.keys())
def test_an_exit_is_an_error(text, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(text)
    code, output = call("train", file, "--iterations", 5, "--out", tmp_path / "run")
    assert code == 2
    assert "SystemExit" in output
    assert str(file) in output
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- sites()

GIVEN = {
    "a generator of names": ("yield from 'ab'", None),
    "a generator of sites": ("yield from (site(n) for n in 'ab')", None),
    "a mapping": ("return {n: site(n) for n in 'ab'}", None),
    "the keys of a mapping": ("return {'a': 1, 'b': 2}.keys()", None),
    "names twice": ("return ['a', 'b', 'a']", "sites() has two sites named 'a'"),
    "a generator of names twice": ("yield from 'aa'", "sites() has two sites named 'a'"),
    "keys that look alike": ("return {1: site('a'), '1': site('b')}", "two sites named '1'"),
    "nothing": ("return None", "sites() gave None: expected a list of sites"),
    "a string": ("return 'ab'", "sites() gave a str: expected a list of sites"),
    "no sites": ("return []", "sites is empty"),
    "one site": ("return site('a')", "one pair of arrays: expected a list of sites"),
}


@pytest.mark.parametrize(("text", "sentence"), GIVEN.values(), ids=GIVEN.keys())
def test_what_sites_may_give(text, sentence, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(FILE.replace('return ["a", "b"]', text))
    code, output = call("train", file, "--iterations", 5)
    if sentence is None:
        assert code == 0, output
        return
    assert code == 2
    assert sentence in output


def test_bytes_that_are_no_text(tmp_path):
    file = tmp_path / "mine.py"
    file.write_bytes(b"\xff\xfe" + FILE.encode())
    code, output = call("train", file)
    assert code == 2
    assert "expected a Python file" in output


# ---------------------------------------------------------------- modules beside FILE.py


def beside(folder, classes) -> object:
    """FILE.py with a module and a package that it needs, one of them only when it is called."""
    (folder / "parts").mkdir(parents=True)
    (folder / "parts" / "__init__.py").write_text(f"CLASSES = {classes}\n")
    (folder / "parts" / "layers.py").write_text(
        "from parts import CLASSES\nimport torch\ndef layer(): return torch.nn.Linear(3, CLASSES)\n"
    )
    (folder / "nearby.py").write_text(f"CLASSES = {classes}\n")
    text = FILE.replace("import torch\n", "import torch\nimport nearby\n", 1)
    text = text.replace(
        "return torch.nn.Linear(3, 2)",
        "from parts.layers import layer\n    assert nearby.CLASSES == layer().out_features\n"
        "    return layer()",
    )
    file = folder / "mine.py"
    file.write_text(text)
    return file


def test_a_module_beside_the_file_is_imported(tmp_path):
    file = beside(tmp_path / "one", 4)
    out = tmp_path / "run"
    code, output = call("train", file, "--iterations", 5, "--out", out)
    assert code == 0, output
    assert call("replay", out)[0] == 0


def test_each_file_finds_its_own_modules(tmp_path):
    """One process, two folders with modules of the same names, and back again."""
    files = [beside(tmp_path / "one", 4), beside(tmp_path / "two", 5)]
    path = list(sys.path)
    for turn in (0, 1, 0, 0, 1):
        job = job_of(read(files[turn]), OPTIONS)
        assert job.problem.flat.shapes[0] == (4 + turn, 3)
    other = tmp_path / "three.py"
    other.write_text(FILE)
    load(read(other))
    assert not {"nearby", "parts", "parts.layers"} & set(sys.modules)
    assert set(sys.path) - set(path) == {str(tmp_path)}
    assert sys.modules["numpy"] is np


# ---------------------------------------------------------------- what is converted is said once


def odd_sites():
    return {
        name: {part: (x.double().numpy(), y.int()) for part, (x, y) in site.items()}
        for name, site in blobs(3).items()
    }


def test_one_line_says_what_was_converted(caplog):
    run = train(linear(), odd_sites(), **QUICK)
    lines = [r.message for r in caplog.records if r.name == "aspire" and r.levelno >= 30]
    assert lines == [
        "converted: inputs from float64 to float32, targets from int32 to int64",
    ]
    caplog.clear()
    again = train(linear(), blobs(3), **QUICK)
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []
    assert all(map(torch.equal, run.model.parameters(), again.model.parameters()))


# ---------------------------------------------------------------- at a federation's site


@pytest.fixture
def kit(tmp_path):
    kits = pytest.importorskip("aspire.engines.grpc.kits", reason="needs aspire-ease[federation]")
    kits.init(tmp_path / "kits", ["a"], ["localhost"], 2)
    return tmp_path / "kits" / "sites" / "a"


SPOILT = {
    "NaN": (
        "    x[7, 1] = float('nan')\n    return x,",
        "site 'a': inputs are NaN or infinite in 1",
    ),
    "classes": ("    return x, 5 *", "site 'a': targets run from 0 to 5: expected 0 to 1"),
    "exit": ("    exit(0)\n    return x,", r"site\(\) raised SystemExit"),
    "a sum": (
        "    return x,",
        "site 'a': the loss CrossEntropyLoss is .* expected a mean",
    ),
}


@pytest.mark.parametrize("fault", SPOILT.keys())
def test_a_site_says_it_before_it_connects(fault, kit, tmp_path):
    text, sentence = SPOILT[fault]
    file = tmp_path / "mine.py"
    loss = "\ndef loss():\n    return torch.nn.CrossEntropyLoss(reduction='sum')\n"
    file.write_text(FILE.replace("    return x,", text) + loss * (fault == "a sum"))
    code, output = call("site", file, "--kit", kit, "--connect", "127.0.0.1:1")
    assert code == 2
    assert re.search(sentence, output), output


def test_a_site_imports_what_is_beside_its_file_and_says_what_it_converts(kit, tmp_path):
    file = beside(tmp_path / "one", 2)
    file.write_text(file.read_text().replace("return x,", "return x.double(),"))
    given = ("site", file, "--kit", kit, "--connect", "127.0.0.1:1", "--give-up", "0")
    code, output = call(*given)
    assert code == 2
    assert "to 127.0.0.1:1" in output  # so it came that far
    assert output.count("converted: inputs from float64 to float32") == 1


def test_what_a_site_says_of_work_that_raises():
    site = pytest.importorskip("aspire.engines.grpc.site", reason="needs aspire-ease[federation]")
    from aspire.problem.problem import build
    from tests.federation.parties import SHAPE

    problem = build(Late(30), {"a": blobs(1)["s0"]})
    local = problem.sites[0]

    async def work():
        name = SimpleNamespace(name="a")
        dialler = site.Dialler(name, "", SHAPE, b"f", lambda _: None, give_up=1.0)
        dialler.loop = asyncio.get_running_loop()
        for _ in range(60):
            await dialler.do(local.gradient, dialler.took == 0, problem.flat.start, 1)

    with pytest.raises(ValueError, match=rf"site 'a' \(train\): the model raised.*{HERE}forward"):
        asyncio.run(work())
