"""Any method in a federation of real processes: named by the server, or by FILE.py at both ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs aspire-ease[federation]")

from aspire.api.user_file import OF_METHODS, Source, load
from aspire.cli.federation import usual_bound
from aspire.engines.grpc import kits
from aspire.engines.grpc.messages import Refusal
from aspire.engines.grpc.method import OWN as MARKER
from aspire.engines.grpc.method import received, sent
from aspire.engines.grpc.policy import Policy, check_method
from aspire.engines.grpc.wire_pb2 import Settings
from aspire.methods import afl, direct, fedavg
from tests.federation.processes import Command, federation
from tests.method_files import OWN, PROBLEM
from tests.test_method_choice import OPTIMIZER, USES_AFL

# The server's own, and never called at a site.
MASTER_ONLY = OPTIMIZER.replace("def optimizer(groups):", "def optimizer(groups):\n    leave()")
CASES = {text: (PROBLEM, ("--method", text)) for text in ("fedavg(local_steps=2)",)}
# Both parts of the same samples: what is asked is whether it runs.
WITH_VAL = PROBLEM.replace('{"train"', '{"val": (x[:10], y[:10]), "train"')
CASES |= {
    "own-best": (WITH_VAL, ("--method", "direct", "--reference", "own-best")),
    "a method of FILE.py": (OWN, ()),
    "--method over method()": (OWN, ("--method", "afl")),
    "optimizer()": (
        MASTER_ONLY + "\ndef leave(): open('called', 'w')\n" + PROBLEM,
        ("--method", "direct(accumulate=2)"),
    ),
}
SENT = {
    "fedavg(local_steps=2)": ("fedavg", {"local_steps": 2, "rate": None}),
    "own-best": (
        "direct",
        {
            **{"local_steps": 1, "accumulate": 1, "learning_rate": None, "weight_decay": 0.0},
            **{"reference": "own-best", "own_gradients": 15},
        },
    ),
    "a method of FILE.py": (MARKER, None),
    "--method over method()": ("afl", {"rate": None}),
    "optimizer()": ("direct", {"local_steps": 1, "accumulate": 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_method_trains_and_replays(name: str, tmp_path: Path) -> None:
    text, options = CASES[name]
    file = tmp_path / "file.py"
    file.write_text(text)
    kits.init(tmp_path / "kits", ["a", "b"], ["127.0.0.1"], 2)
    given = ("--iterations", "30", "--batch-size", "8", "--log", "vectors", *options)
    with federation(file, tmp_path / "kits", tmp_path, given) as parties:
        codes = [party.wait(120) for party in parties]
        assert codes == [0, 0, 0], [party.said for party in parties]
        again = Command("replay", ["replay", "run"], tmp_path / "server")
        assert again.wait(60) == 0, again.said
    assert "bit for bit" in again.said
    settings = json.loads((tmp_path / "server" / "run" / "run.json").read_text())
    result = json.loads((tmp_path / "server" / "run" / "result.json").read_text())
    assert result["iterations"] == 30
    assert result["mean_accuracy"] > 0.5  # of 20 samples a site, whose batches are its secret
    method, arguments = SENT[name]
    work = settings["engine"]["arguments"]["work"]
    assert work["method"] == method
    assert (json.loads(work["arguments"]) if work["arguments"] else None) == arguments
    called = [(tmp_path / place / "called").exists() for place in ("server", "a", "b")]
    assert called == [name == "optimizer()", False, False]


# ---------------------------------------------------------------- what a server sends


def settings_of(method: Any, **changed: Any) -> Settings:
    return Settings(**sent(method, own=False) | changed)


def test_what_is_sent_comes_back_as_the_same_method() -> None:
    own = direct(reference="own-best", own_gradients=5, weight_decay=0.1)
    for method in (afl(0.1), fedavg(3, prior=[0.5, 0.5]), direct(accumulate=4, clip=2.0), own):
        made = received(settings_of(method), None)
        assert (made.name, made.kinds) == (method.name, method.kinds)
    assert "prior" not in settings_of(fedavg(3, prior=[0.5, 0.5])).arguments


def test_the_marker_calls_method_of_the_sites_own_file() -> None:
    ours = afl()
    assert received(Settings(**sent(direct(), own=True)), lambda: ours) is ours
    for settings, own in (
        (Settings(method=MARKER), None),
        (Settings(method=MARKER, arguments="{}"), lambda: ours),
    ):
        with pytest.raises(ValueError, match=r"method\(\) of our FILE.py: expected one there"):
            received(settings, own)


def test_a_method_that_no_name_makes_is_not_sent() -> None:
    from dataclasses import replace

    with pytest.raises(ValueError, match="'afl' cannot be sent to sites: expected one of aspire"):
        sent(replace(afl(), site_arguments=None), own=False)
    with pytest.raises(ValueError, match="asks sites for more than its site_arguments say"):
        sent(replace(fedavg(9), site_arguments={"rate": None}), own=False)


def test_the_policy_counts_batches_of_any_method() -> None:
    """Also of one that the site's own FILE.py makes."""
    policy = Policy(max_local_steps=3)
    for method in (afl(), fedavg(3), direct(accumulate=3)):
        check_method(policy, method)
    own = direct(reference="own-best", own_gradients=4)
    for method in (fedavg(4), direct(accumulate=4), own):
        sentence = r"asks for 4 local steps .*max_local_steps=3; raise max_local_steps if you"
        with pytest.raises(Refusal, match=sentence):
            check_method(policy, method)


UNSIZED = """
from aspire.methods import direct

def method():
    return direct(reference="own-best")
"""


@pytest.mark.parametrize(
    ("method", "sentences"),
    [
        (USES_AFL.replace("rate=0.3", "rate=-1"), ("method() raised ValueError", "rate=-1")),
        (UNSIZED, ("method() has reference='own-best': expected own_gradients with it",)),
    ],
)
def test_a_site_says_what_is_wrong_with_its_own_method_before_it_calls(
    method: str, sentences: tuple[str, ...], tmp_path: Path
) -> None:
    kits.init(tmp_path / "kits", ["a"], ["127.0.0.1"], 2)
    file = tmp_path / "file.py"
    file.write_text(PROBLEM + method)
    kit = str(tmp_path / "kits" / "sites" / "a")
    site = Command("site", ["site", str(file), "--kit", kit, "--connect", "127.0.0.1:1"], tmp_path)
    assert site.wait(60) == 2
    assert all(sentence in site.said for sentence in sentences)


NETWORK = PROBLEM.replace(
    "torch.nn.Linear(3, 2)", "torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))"
)


@pytest.mark.parametrize(
    ("text", "method", "bound"),
    [
        (PROBLEM, None, "pull_bound"),
        (PROBLEM, "aspire", "pull_bound"),
        (PROBLEM, "aspire(form='direct')", "clip"),
        (PROBLEM, "aspire(liars=2)", "clip"),
        (PROBLEM + OPTIMIZER, "aspire", "clip"),
        (NETWORK, None, "clip"),
        (NETWORK, "aspire", "clip"),
        (NETWORK, "aspire(form='consensus')", "pull_bound"),
    ],
)
def test_the_usual_bound_is_that_of_the_form_that_trains(
    text: str, method: str | None, bound: str
) -> None:
    options: dict[str, Any] = dict.fromkeys(OF_METHODS) | {"method": method}
    assert list(usual_bound(load(Source("file.py", text)), options)) == [bound]
