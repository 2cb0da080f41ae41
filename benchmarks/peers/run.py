"""`make bench-peers`: other simulators of federated learning on the same work, in the same run.

    python benchmarks/peers/run.py [--only NAME ...] [--threads 2]

Each peer gets a virtual environment of its own under .venv-peers, filled from the package index
with the torch of constraints.txt. Every figure is a ratio to a plain PyTorch loop that is timed
before and after it in the same process; ours is then a multiple of each peer's. A peer that does
not install or run is listed with the reason. With one thread each the processor's time counts, with
more the wall's, so let nothing else run. Writes benchmarks/peers.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PLACE = ROOT / ".venv-peers"
RESULTS = HERE.parent / "peers.json"
PATIENCE = 300.0  # seconds to install one peer, and to run it
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "THREADS": "1"}
ASYNCHRONOUS = "asynchronous"
PEERS: dict[str, dict[str, Any]] = {  # name: what pip installs, and what is run
    "pfl": {"install": "pfl[pytorch]", "runs": {"synchronous": ["pfl_research.py"]}},
    "fedlab": {
        "install": "fedlab",
        "runs": {"synchronous": ["fed_lab.py"], ASYNCHRONOUS: ["fed_lab.py", "--async"]},
    },
    "flwr": {"install": "flwr[simulation]", "runs": {"synchronous": ["flower_ray.py"]}},
}
OURS = {
    f"{form}, S = {quorum}": ["ours.py", form, str(quorum)]
    for form in ("direct", "consensus")
    for quorum in (1, 10, 50)
}


def pins() -> list[str]:
    """torch and numpy as we have them, so that pip brings nothing larger."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    return re.findall(r"^((?:torch|numpy)==\S+)", text, flags=re.MULTILINE)


def installed(name: str, wanted: str) -> Path:
    """The interpreter of a peer's environment, made if it is not there."""
    python = PLACE / name / "bin" / "python"
    if not (PLACE / name / "done").exists():
        venv.create(PLACE / name, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        run([*command, *pins(), wanted])
        (PLACE / name / "done").touch()
    return python


def run(command: list[str], **more: str) -> str:
    """Its output; RuntimeError with the last line of its complaint where it fails."""
    env = {**os.environ, **THREADS, **more}
    process = subprocess.Popen(
        command,
        cwd=HERE,
        env=env,
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        output, complaint = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with all that it started
        raise RuntimeError(f"not done after {PATIENCE:.0f} s") from None
    if process.returncode:
        said = [line for line in complaint.splitlines() if line.strip()]
        raise RuntimeError(said[-1] if said else f"exit code {process.returncode}")
    return output


def figures(python: Path, script: list[str], **more: str) -> dict[str, Any]:
    lines = run([str(python), *script], **more).strip().splitlines()
    found: dict[str, Any] = json.loads(lines[-1])
    return {
        key: value if isinstance(value, str) else round(value, 3) for key, value in found.items()
    }


def measure(name: str, peer: dict[str, Any]) -> dict[str, Any]:
    """What a peer reaches, or why it does not."""
    try:
        python = installed(name, peer["install"])
        code = f"import importlib.metadata as m; print(m.version({name!r}))"
        found: dict[str, Any] = {"version": run([str(python), "-c", code]).strip()}
        for kind, script in peer["runs"].items():
            found[kind] = figures(python, script)
            print(f"{name:<8}{kind:<14}{found[kind]['ratio_to_plain']:8.3f}", flush=True)
    except (RuntimeError, OSError) as error:
        print(f"{name:<8}not measured: {error}", flush=True)
        return {"not_measured": str(error)}
    return found


def multiples(ours: dict[str, Any], peers: dict[str, Any]) -> dict[str, Any]:
    """Ours as a multiple of the fastest peer and of the fastest asynchronous one."""
    ratios = {
        (name, kind): value["ratio_to_plain"]
        for name, found in peers.items()
        for kind, value in found.items()
        if isinstance(value, dict)
    }
    best = max(value["ratio_to_plain"] for value in ours.values())
    said: dict[str, Any] = {"ours_best_ratio_to_plain": best}
    for title, wanted, kinds in (
        ("fastest_peer", 10.0, ("synchronous", ASYNCHRONOUS)),
        ("fastest_asynchronous_peer", 30.0, (ASYNCHRONOUS,)),
    ):
        chosen = {key: value for key, value in ratios.items() if key[1] in kinds}
        if chosen:
            key = max(chosen, key=lambda k: chosen[k])
            times = round(best / chosen[key], 2)
            said[title] = {"name": " ".join(key), "ours_times_it": times, "wanted": wanted}
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--threads", type=int, default=1, help="of every process, ours and theirs")
    given = parser.parse_args()
    THREADS.update(dict.fromkeys(THREADS, str(given.threads)))
    source = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    ours = {}
    for kind, script in OURS.items():
        ours[kind] = figures(Path(sys.executable), script, PYTHONPATH=source)
        print(f"{'aspire':<8}{kind:<18}{ours[kind]['ratio_to_plain']:8.3f}", flush=True)
    peers = {name: measure(name, PEERS[name]) for name in given.only}
    results = {
        "work": "7-64-32-16-11, 100 clients, batch 64, one local step",
        "threads": given.threads,
        "load_before": [round(x, 1) for x in os.getloadavg()],
        "ours": ours,
        "peers": peers,
        **multiples(ours, peers),
    }
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(f"written to {RESULTS.name}")


if __name__ == "__main__":
    main()
