"""A cell knows the sources it was made with: prose changes nothing, code anywhere below does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from aspire.cli import main
from reproduction import cells, pool, provenance, results

FILES = {
    "reproduction/__init__.py": "",
    "reproduction/top.py": '"""Top."""\nfrom aspire.low import f\nx = f()  # why\n',
    "aspire/__init__.py": "from aspire import other\n",
    "aspire/low.py": 'def f():\n    """One."""\n    return 1\n',
    "aspire/other.py": "",
    "aspire/alone.py": "",
    "aspire/compiled/a.c": "int a; /* a */\n",
}


@pytest.fixture
def hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The hash of `reproduction.top` when some of the files are otherwise."""
    homes = {name: tmp_path / name for name in ("aspire", "reproduction")}
    monkeypatch.setattr(provenance, "HOMES", homes)

    def of(**changed: str) -> str:
        for name, text in (FILES | changed).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return provenance.hash_of.__wrapped__("reproduction.top")

    return of


@pytest.mark.parametrize(
    ("file", "text", "same"),
    [
        ("reproduction/top.py", '"""Else."""\n\nfrom aspire.low import f\n\nx = f()\n', True),
        ("aspire/low.py", "def f():\n    return 1\n", True),
        ("aspire/low.py", 'def f():\n    """One."""\n    return 2\n', False),
        ("aspire/other.py", "import sys\n", False),
        ("aspire/alone.py", "import sys\n", True),
        ("aspire/compiled/a.c", "int  a; // b\n", True),
        ("aspire/compiled/a.c", "int b;\n", False),
    ],
)
def test_what_the_hash_is_of(hashed, file: str, text: str, same: bool) -> None:
    before = hashed()
    assert (hashed(**{file: text}) == before) == same


def test_the_sources_of_a_cell_are_those_that_python_loads() -> None:
    found = provenance.imported("reproduction.cells").keys()
    assert {"reproduction.scores", "aspire", "aspire.core.equations", "aspire.types"} <= found
    assert not {"aspire.cli", "reproduction.page", "aspire.engines.grpc.server"} & found


def test_of_the_methods_only_the_one_that_made_a_cell_counts(hashed, monkeypatch) -> None:
    files = {
        "aspire/__init__.py": "from aspire.methods import mine, other\n",
        "aspire/methods/__init__.py": "from aspire.methods import mine, other\n",
        "aspire/methods/mine.py": "from aspire.methods import shared\n",
        "aspire/methods/other.py": "x = 1\n",
        "aspire/methods/shared.py": "y = 1\n",
    }
    monkeypatch.setattr(provenance, "module_of", lambda method: f"aspire.methods.{method}")
    hashed(**files)

    def of(**changed: str) -> str:
        hashed(**(files | changed))
        return provenance.hash_of.__wrapped__("reproduction.top", "mine")

    before = of()
    assert of(**{"aspire/methods/other.py": "x = 2\n"}) == before
    assert of(**{"aspire/methods/mine.py": "from aspire.methods import shared, other\n"}) != before
    assert of(**{"aspire/methods/shared.py": "y = 2\n"}) != before
    assert of(**{"aspire/low.py": "f = None\n"}) != before


def test_the_sources_of_a_baseline_are_its_own() -> None:
    assert provenance.module_of("drfa-prox") == "aspire.methods.baselines.drfa_prox"
    assert provenance.module_of("direct") == "aspire.methods.aspire_ease.direct.form"
    own = provenance.imported(provenance.module_of("afl"), within="aspire.methods.")
    assert {"aspire.methods.baselines.afl", "aspire.methods.baselines.rounds"} <= own.keys()
    assert not {"aspire.methods.baselines.fedavg", "aspire.methods.by_name"} & own.keys()


CELL = cells.Cell("delays", "synthetic", "largest", 0, "", 10)


def test_a_cell_of_other_sources_is_stale_and_one_of_unknown_ones_is_kept(tmp_path: Path) -> None:
    pool.carry_out([CELL], tmp_path, data=None, jobs=1)
    records = results.read(tmp_path / "delays.jsonl")
    key = ("synthetic", "largest", 0)
    record = records[key]
    assert record["sources"] == provenance.hash_of("reproduction.cells")
    unknown = {name: x for name, x in record.items() if name != "sources"}
    assert pool.finished(CELL, {key: record}) is record
    assert pool.finished(CELL, {key: unknown}) is unknown
    assert pool.finished(CELL, {key: record | {"sources": "0123"}}) is None


def test_the_report_says_what_is_stale(tmp_path: Path) -> None:
    now = provenance.hash_of("reproduction.cells")
    lines = [{"sources": now}, {"sources": "0123", "a": 1}, {"b": 2}]
    (tmp_path / "delays.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    committed = Path(__file__).parents[2] / "results" / "delays.jsonl"
    with (tmp_path / "delays.jsonl").open("a") as file:
        file.writelines(committed.read_text().splitlines(keepends=True)[:1])
    done = CliRunner().invoke(main, ["report", str(tmp_path), "--tables"])
    assert done.exit_code == 0, done.output
    assert "delays: Of 4 cells 1 are stale" in done.stderr
    assert "2 do not say with which they were made" in done.stderr
