"""One FILE.py, unchanged, on the simulator, Ray, the federation and Flower: the same worst site?

python benchmarks/same_everywhere.py                       all four: the demo's data, 15 minutes
python benchmarks/same_everywhere.py --on simulator ray
python benchmarks/same_everywhere.py --choose              how FEW was chosen: 2 minutes

The first three take 8,000 steps of one gradient each; Flower 200 messages of K = 50. A message of
Flower's costs seconds, so there are few of them, and the sites are tied less and the weights move
further in each (FEW): of the settings in GRID the one with the least worst-case training loss after
200 messages in the simulator. No test image had a say in it.

The demo's images, noise and turned scanner; 120 of a site's images are trained on and 179 or 180
are the test, so one is 0.56 points. With gradients on whole sites and these many steps all end near
the one minimax model, whatever the order in which reports arrived.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engines
import flower

NAMES = ["site A", "site B", "site C", "site D", "site E", "site F (sideways)"]
STEPS = 8000
MESSAGES = 200
LOCAL = 50
FEW = "auto(coupling=0.02, ascent=2)"
GRID = [(0.1, 0.1), (0.1, 2), (0.05, 2), (0.02, 1), (0.02, 2), (0.02, 5), (0.01, 2)]
SHARED = ["--weight-decay", "0.01", "--evaluate-every", "0", "--log", "off", "--batch-size", "0"]
FILE = f"""
import torch
from reproduction import demo
from aspire.sets import CDNorm

def model():
    return torch.nn.Linear(64, 10)

def sites():
    return {NAMES}

def site(name):
    x, y = (torch.cat(part) for part in zip(*demo.sites(0)[name].values()))
    return {{"train": (x[:120], y[:120]), "test": (x[120:], y[120:])}}

def uncertainty():
    return CDNorm(radius=1 / 6, budget=6.0)
"""


def on_simulator(folder: Path) -> dict[str, Any]:
    return trained(folder, "train", str(folder / "problem.py"))


def on_ray(folder: Path) -> dict[str, Any]:
    return trained(folder, "train", str(folder / "problem.py"), "--engine", "ray")


def on_federation(folder: Path) -> dict[str, Any]:
    kits = folder / "kits"
    at = f"127.0.0.1:{engines.free_port()}"
    engines.aspire("federation", "init", str(kits), "--sites", ",".join(NAMES))
    with contextlib.ExitStack() as stack:
        for name in NAMES:
            site = ["site", str(folder / "problem.py"), "--kit", str(kits / "sites" / name)]
            stack.enter_context(engines.started([*engines.ASPIRE, *site, "--connect", at]))
        server = ["--kit", str(kits / "server"), "--listen", at]
        return trained(folder, "server", str(folder / "problem.py"), *server)


def trained(folder: Path, *command: str) -> dict[str, Any]:
    out = folder / "run"
    engines.aspire(*command, *SHARED, "--iterations", str(STEPS), "--out", str(out))
    return dict(json.loads((out / "result.json").read_text(encoding="utf-8")))


def on_flower(folder: Path) -> dict[str, Any]:
    """The example's project around this FILE.py."""
    project = folder / "project"
    shutil.copytree(flower.EXAMPLE, project, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(folder / "problem.py", project / "digits" / "problem.py")
    with flower.federation(NAMES, folder) as env:
        return flower.flwr_run(
            project,
            env,
            folder / "run",
            3000.0,
            iterations=MESSAGES,
            local_steps=LOCAL,
            preset=FEW,
            weight_decay=0.01,
            batch_size=0,
            log="off",
        )


def choose() -> None:
    """The worst-case loss on the training parts for each setting of GRID."""
    for coupling, ascent in GRID:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            (folder / "problem.py").write_text(FILE, encoding="utf-8")
            preset = f"auto(coupling={coupling}, ascent={ascent})"
            engines.aspire(
                "train",
                str(folder / "problem.py"),
                *SHARED,
                "--preset",
                preset,
                "--iterations",
                str(MESSAGES),
                "--local-steps",
                str(LOCAL),
                "--out",
                str(folder / "run"),
            )
            found = json.loads((folder / "run" / "result.json").read_text(encoding="utf-8"))
        print(f"{preset:<36}{found['worst_case_loss']:.4f}", flush=True)


WHERE: dict[str, Callable[[Path], dict[str, Any]]] = {
    "simulator": on_simulator,
    "ray": on_ray,
    "federation": on_federation,
    "flower": on_flower,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--on", nargs="+", choices=WHERE, default=list(WHERE))
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--choose", action="store_true", help="the settings of GRID, no engines")
    given = parser.parse_args()
    if given.choose:
        choose()
        return 0
    rows = []
    print(f"{'':<12}{'worst site':>11}{'mean':>8}{'gradients':>11}{'seconds':>9}")
    for name in given.on:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            began = time.monotonic()
            (folder / "problem.py").write_text(FILE, encoding="utf-8")
            found = WHERE[name](folder)
        kept = ("worst_accuracy", "mean_accuracy", "accuracies", "weights", "worker_gradients")
        row = {"on": name, "seconds": time.monotonic() - began, **{k: found[k] for k in kept}}
        rows.append(row)
        print(
            f"{name:<12}{100 * row['worst_accuracy']:>10.2f}%{100 * row['mean_accuracy']:>7.2f}%"
            f"{row['worker_gradients']:>11}{row['seconds']:>9.0f}",
            flush=True,
        )
    worst = [100 * row["worst_accuracy"] for row in rows]
    print(f"apart: {max(worst) - min(worst):.2f} points")
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0 if max(worst) - min(worst) <= 1.0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
