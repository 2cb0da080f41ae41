"""While a federation runs: certificates are renewed, a late site comes, a proxy cuts the lines."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("grpc", reason="needs aspire-ease[federation]")

from aspire.api.user_file import job_of
from aspire.cli import main
from aspire.cli.run import recorded, start_again
from aspire.engines.grpc import proxies, site
from tests.federation.processes import Command, command, listening
from tests.federation.proxy import Proxy

FILE = """
import torch

def model():
    return torch.nn.Linear(4, 2)

def site(name):
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(ord(name)))
    return x, (x[:, 0] > 0).long()
"""
FREELY = 200  # tasks that a site does before it waits for the test


def aspire(*arguments: str) -> str:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    return done.output


def counted(arguments: list[str], folder: str, log: str) -> None:
    """`aspire site` behind a proxy, which notes its tasks and does not end before the test says."""
    os.environ |= json.loads(Path(folder, "environment").read_text())
    real, done = site.serve, []

    def serve(method: Any, local: Any, worker: Any, task: Any) -> Any:
        done.append(task.id)
        while len(done) > FREELY and not Path(folder, "go").exists():
            time.sleep(0.02)
        with open("tasks", "a") as file:
            file.write(f"{task.id}\n")
        return real(method, local, worker, task)

    site.serve = serve
    command(arguments, folder, log)


class Federation:
    """A server and sites, each with a folder of its own; sites made their keys themselves."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.owner = folder, folder / "owner"
        self.parties: dict[str, Command] = {}
        self.proxy = Proxy()
        self.environment = {"HTTPS_PROXY": self.proxy.address}
        (folder / "file.py").write_text(FILE)
        listed = ("--sites", "a,b,c", "--keys-at-sites", "--days", "20")
        aspire("federation", "init", str(self.owner), *listed)

    def serve(self, *options: str, run: str = "run") -> None:
        kit, out = str(self.owner / "server"), str(self.folder / run)
        address = ("--listen", getattr(self, "address", "127.0.0.1:0"))
        given = ["server", str(self.folder / "file.py"), "--kit", kit, *address, "--out", out]
        self.parties["server"] = Command("server", [*given, *options], self.folder)
        self.address = listening(self.parties["server"])

    def join(self, name: str) -> None:
        """A site makes its key, has it signed and connects."""
        kit = self.folder / name
        aspire("federation", "request", name, str(kit))
        aspire("federation", "sign", str(self.owner), str(kit / "request.pem"), "--days", "20")
        self.install(name)
        (kit / "environment").write_text(json.dumps(self.environment))
        given = ["--kit", str(kit), "--connect", self.address]
        words = ["site", str(self.folder / "file.py"), *given]
        self.parties[name] = Command("site", words, kit, counted)

    def install(self, name: str) -> None:
        for file in ("cert.pem", "ca.pem"):
            shutil.copy(self.owner / "sites" / name / file, self.folder / name / file)

    def status(self) -> dict[str, Any]:
        path = self.folder / "run" / "status.json"
        return json.loads(path.read_text()) if path.exists() else {"iteration": 0}

    def computed(self, name: str) -> list[int]:
        """The tasks that a site did, evaluations aside."""
        done = map(int, (self.folder / name / "tasks").read_text().split())
        return [task for task in done if task >= 0]

    def absorbed(self) -> dict[int, list[int]]:
        """The tasks whose reports the server took, by the number of the site."""
        found: dict[int, list[int]] = {0: [], 1: [], 2: []}
        for line in (self.folder / "run" / "events.jsonl").read_text().splitlines():
            event = json.loads(line)
            if event.get("event") == "report":
                found[event["worker"]].append(event["task"])
        return found

    def end(self) -> None:
        for party in self.parties.values():
            party.kill()
        self.proxy.close()


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path)
    yield made
    made.end()


def shown_by_server(federation: Federation) -> bytes | None:
    """The certificate that a site gets to see at its next connection."""
    kit = federation.folder / "a"
    context = ssl.create_default_context(cafile=str(kit / "ca.pem"))
    context.load_cert_chain(kit / "cert.pem", kit / "key.pem")
    context.set_alpn_protocols(["h2"])
    host, _, port = federation.address.rpartition(":")
    plain = socket.create_connection((host, int(port)))
    with context.wrap_socket(plain, server_hostname=host) as line:
        return line.getpeercert(binary_form=True)


def until(true: Callable[[], Any]) -> None:
    end = time.monotonic() + 120.0
    while not true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def test_renewal_and_a_late_site_lose_no_report(federation: Federation) -> None:
    """c has no kit when the run begins; then all certificates are renewed and all lines cut."""
    folder, owner, parties = federation.folder, federation.owner, federation.parties
    federation.serve(
        "--iterations", "1500", "--min-sites", "2", "--log", "vectors", "--patience", "600"
    )
    federation.join("a")
    federation.environment = {"https_proxy": federation.proxy.address}
    federation.join("b")
    until(lambda: federation.status()["iteration"] > 20)
    assert not (folder / "c").exists()
    federation.join("c")
    until(lambda: "site c is back" in parties["server"].said)
    old = shown_by_server(federation)
    keys = {path: path.read_bytes() for path in owner.rglob("key.pem")}
    assert "server, a, b, c" in aspire("federation", "renew", str(owner))
    assert {path: path.read_bytes() for path in owner.rglob("key.pem")} == keys
    for name in "abc":
        federation.install(name)
    until(lambda: "server: took the new certificate" in parties["server"].said)
    new = (owner / "server" / "cert.pem").read_text()
    assert shown_by_server(federation) == ssl.PEM_cert_to_DER_cert(new) != old
    federation.proxy.cut()
    for name in "abc":
        (folder / name / "go").touch()
    assert [parties[name].wait(120) for name in ("server", "a", "b", "c")] == [0] * 4
    assert len(federation.proxy.asked) >= 6
    assert set(federation.proxy.asked) == {federation.address}
    for number, name in enumerate("abc"):
        assert f"{name}: took the new certificate" in parties[name].said
        computed, absorbed = federation.computed(name), federation.absorbed()[number]
        assert len(computed) == len(set(computed))  # nothing twice
        assert absorbed == computed[: len(absorbed)]  # nothing lost
        assert len(computed) - len(absorbed) <= 1  # the one in its hands at the end
    assert "bit for bit" in aspire("replay", str(folder / "run"))


def test_an_unlisted_site_needs_stop_add_and_a_run_from_the_model(federation: Federation) -> None:
    """The sites that were there wait, and are found again; all of them without a proxy."""
    folder, owner, parties = federation.folder, federation.owner, federation.parties
    federation.environment = {"HTTPS_PROXY": "http://127.0.0.1:1", "NO_PROXY": "127.0.0.1"}
    for name in "abcd":
        (folder / name).mkdir()
        (folder / name / "go").touch()
    federation.serve("--iterations", "100000", "--log", "vectors")
    for name in "abc":
        federation.join(name)
    until(lambda: federation.status()["iteration"] > 50)
    server = parties["server"]
    assert server.process.pid is not None
    os.kill(server.process.pid, signal.SIGTERM)
    assert server.wait() == 130
    aspire("federation", "add", str(owner), "d", "--keys-at-sites")
    more = ("--iterations", "200", "--log", "vectors", "--start", str(folder / "run"))
    federation.serve(*more, run="more")
    federation.join("d")
    assert [parties[name].wait(120) for name in ("server", *"abcd")] == [0] * 5
    settings, result = (
        json.loads((folder / "more" / name).read_text()) for name in ("run.json", "result.json")
    )
    assert settings["sites"] == ["a", "b", "c", "d"]
    assert settings["start"]["run"] == str(folder / "run")
    first = json.loads((folder / "more" / "history.jsonl").read_text().splitlines()[0])
    assert max(first["losses"]) < math.log(2)  # the model knows something from before
    assert result["iterations"] == 200
    assert "bit for bit" in aspire("replay", str(folder / "more"))
    settings["start"]["model"] = 64 * "0"
    source, options, _ = recorded(folder / "more")
    job = job_of(source, options, [], settings["sites"])
    with pytest.raises(ValueError, match=r"run has gone on since the run in .*more began"):
        start_again(folder / "more", job, settings)


def test_a_start_that_is_no_federation_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(FILE + "def sites():\n    return ['a', 'b']\n")
    aspire("federation", "init", str(tmp_path / "kits"), "--sites", "a,b")
    aspire("train", str(file), "--iterations", "5", "--out", str(tmp_path / "run"))
    words = ["server", str(file), "--kit", str(tmp_path / "kits" / "server")]
    words += ["--listen", "127.0.0.1:0", "--out", str(tmp_path / "more"), "--start"]
    for start, sentence in (("run", "of a run of aspire server"), ("no", "and there is none")):
        done = CliRunner().invoke(main, [*words, str(tmp_path / start)])
        assert done.exit_code == 2
        assert sentence in done.output
        assert not (tmp_path / "more").exists()


def test_upper_case_proxies_give_way_to_lower_case(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*proxies.VARIABLES, *map(str.upper, proxies.VARIABLES)):
        monkeypatch.setenv(name, "")  # so that what is set below ends with the test
        monkeypatch.delenv(name)
    monkeypatch.setenv("HTTPS_PROXY", "http://upper:1")
    monkeypatch.setenv("NO_PROXY", "upper")
    monkeypatch.setenv("no_proxy", "lower")
    proxies.accept_upper_case()
    found = [os.environ.get(name) for name in proxies.VARIABLES]
    assert found == ["http://upper:1", None, "lower"]
