"""What the pages show is what happens: their code is run.

The blocks of one page share a namespace and a temporary directory, in order.

- ```python blocks are executed; after `<!-- file: NAME -->` they are written to NAME instead.
- ```console and ```sh blocks: `$ aspire ...` and `$ python FILE` are run and must exit with 0;
  `$ make TARGET` must name a target that exists; pip, git and cd are left alone.
- `<!-- not run: REASON -->` before a block leaves it out.
"""

import re
import shlex
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

COMMENT = re.compile(r"<!--\s*(not run|file):\s*(.*?)\s*-->")
LEFT_ALONE = {"pip", "git", "cd", "source", "."}


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, text, first line in the page and the comment before it."""

    language: str
    text: str
    line: int
    mark: str
    argument: str


def blocks_of(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = page.splitlines()
    fence, start, before = None, 0, ""
    for number, line in enumerate(lines):
        opening = re.match(r"\s*(`{3,})\s*([\w+-]*)", line)
        if fence is None and opening:
            fence, language, start = opening[1], opening[2], number + 1
        elif fence is not None and line.strip() == fence:
            found = COMMENT.fullmatch(before)
            mark, argument = found.groups() if found else ("", "")
            text = textwrap.dedent("\n".join(lines[start:number]))
            yield Block(language, text, start + 1, mark, argument)
            fence, before = None, ""
        elif fence is None and line.strip():
            before = line.strip()
    assert fence is None, f"the block that starts at line {start} is never closed"


def commands_of(block: Block) -> list[str]:
    """The commands of a console block: the `$ ` lines; in a bare sh block, every line."""
    lines = block.text.replace("\\\n", " ").splitlines()
    shown = [line[2:] for line in lines if line.startswith("$ ")]
    return shown or ([] if block.language == "console" else [line for line in lines if line])


def make_targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):(?!=)", makefile, flags=re.MULTILINE))


def run_aspire(arguments: list[str], where: str) -> None:
    from aspire.cli import main

    result = CliRunner().invoke(main, arguments)
    if result.exit_code != 0:
        trace = "".join(traceback.format_exception(*result.exc_info)) if result.exc_info else ""
        pytest.fail(f"{where}: exit code {result.exit_code}\n{result.output}\n{trace}")


def run_command(command: str, where: str) -> None:
    """Run one line of a console block, or check what can be checked of it."""
    words = shlex.split(command, comments=True)
    if not words:
        return
    where = f"{where}: $ {command}"
    program, arguments = Path(words[0]).name, words[1:]
    if program in {"python", "python3"} and arguments[:1] == ["-m"]:
        program, arguments = arguments[1], arguments[2:]
    if program in LEFT_ALONE or program == "venv":
        return
    assert not {"|", ">", "<", "&&", ";", "&"} & set(words), f"{where}: one plain command, please"
    if program == "make":
        targets = {word for word in arguments if "=" not in word and not word.startswith("-")}
        assert targets <= make_targets(), f"{where}: the Makefile has no such target"
    elif program == "aspire":
        run_aspire(arguments, where)
    elif program in {"python", "python3"}:
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, f"{where}\n{done.stdout}\n{done.stderr}"
    else:
        pytest.fail(f"{where}: do not know how to check this; mark the block as not run, and why")


def run_block(block: Block, namespace: dict[str, Any], page: str) -> None:
    where = f"{page}, line {block.line}"
    if block.mark == "not run":
        assert block.argument, f"{where}: a block that is not run says why"
    elif block.mark == "file":
        target = Path(block.argument)
        assert not target.is_absolute(), f"{where}: files go into the page's own directory"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(block.text + "\n", encoding="utf-8")
    elif block.language == "python":
        # Empty lines in front, so that a traceback shows the line of the page.
        code = "\n" * (block.line - 1) + block.text
        exec(compile(code, page, "exec"), namespace)
    elif block.language in {"console", "sh", "bash", "shell"}:
        for command in commands_of(block):
            run_command(command, where)


def run_page(text: str, page: str) -> None:
    """Run the blocks of a page in the current directory."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(text):
        run_block(block, namespace, page)


@pytest.fixture
def global_state() -> Iterator[None]:
    """A page may set torch's seed or default type; the next test must not notice."""
    generator, dtype = torch.get_rng_state(), torch.get_default_dtype()
    yield
    torch.set_rng_state(generator)
    torch.set_default_dtype(dtype)


@pytest.mark.slow
@pytest.mark.usefixtures("global_state")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if not page.exists():
        pytest.skip(f"{page.name} is not written yet")
    run_page(page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix())


EXAMPLE = """\
<!-- file: sub/hello.py -->
```python
print("hello")
```

```python
x = 1
```
text
```console
$ python sub/hello.py
hello
$ make demo ARGS='--seeds 5'
$ pip install aspire-ease
```
<!-- not run: it needs a cluster -->

```python
raise RuntimeError
```
```python
assert x == 1
```
"""


def test_blocks_share_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [block.line for block in blocks_of(EXAMPLE)] == [3, 7, 11, 19, 22]
    run_page(EXAMPLE, "EXAMPLE")
    assert (tmp_path / "sub" / "hello.py").read_text() == 'print("hello")\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("```console\n$ make tea\n```", "no such target"),
        ("```console\n$ python missing.py\n```", "missing.py"),
        ("```console\n$ aspire demo | head\n```", "one plain command"),
        ("```console\n$ frobnicate\n```", "do not know how to check"),
        ("<!-- not run: -->\n```python\n1\n```", "says why"),
        ("```python\n1 / 0\n```", "division by zero"),
        ("```python\n", "never closed"),
    ],
)
def test_a_broken_page_is_noticed(
    text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((AssertionError, ZeroDivisionError, pytest.fail.Exception), match=sentence):
        run_page(text, "EXAMPLE")
