"""What the pages show is what happens: their code is run, and what it prints is compared.

The blocks of one page share a namespace and a temporary directory, in order.

- ```python blocks are executed; after `<!-- file: NAME -->` they are written to NAME instead.
- ```console and ```sh blocks: `$ aspire ...` and `$ python FILE` are run and must exit with 0;
  `$ make TARGET` must name a target that exists, and is run where it is one call of aspire; pip,
  git and cd are left alone.
- `<!-- not run: REASON -->` before a block leaves it out.

Outputs, which are what goes to standard output, whole:

- In a console block the lines below a command are what it prints; without any, nothing is said.
- A ```text block is what the block before it printed, or is marked as not run.
- `<!-- varies: RE RE ... -->` before the block with the output: what these regular expressions
  (without spaces in them) match may differ, and so may the number of spaces beside it.
- `<!-- within: K -->`: numbers with a decimal point may differ by K in their last digit, since the
  last bits of a training depend on the processor. All else is the same to the letter.
"""

import contextlib
import difflib
import io
import re
import shlex
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

COMMENT = re.compile(r"<!--\s*(not run|file|varies|within):\s*(.*?)\s*-->")
LEFT_ALONE = {"pip", "git", "cd", "source", "."}
DECIMAL = re.compile(r"-?\d+\.\d+")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, text, first line in the page and the comments before it."""

    language: str
    text: str
    line: int
    marks: dict[str, str]


def blocks_of(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = page.splitlines()
    fence, start, marks = None, 0, {}
    for number, line in enumerate(lines):
        opening = re.match(r"\s*(`{3,})\s*([\w+-]*)", line)
        comment = COMMENT.fullmatch(line.strip())
        if fence is None and opening:
            fence, language, start = opening[1], opening[2], number + 1
        elif fence is not None and line.strip() == fence:
            text = textwrap.dedent("\n".join(lines[start:number]))
            yield Block(language, text, start + 1, marks)
            fence, marks = None, {}
        elif fence is None and comment:
            marks = {**marks, comment[1]: comment[2]}
        elif fence is None and line.strip():
            marks = {}
    assert fence is None, f"the block that starts at line {start} is never closed"


def commands_of(block: Block) -> list[tuple[str, str]]:
    """The commands of a console block, the `$ ` lines, each with what is shown below it.

    In a bare sh block every line is a command, and nothing is shown.
    """
    lines = block.text.replace("\\\n", " ").splitlines()
    places = [at for at, line in enumerate(lines) if line.startswith("$ ")]
    if not places:
        return [] if block.language == "console" else [(line, "") for line in lines if line]
    ends = [*places[1:], len(lines)]
    return [
        (lines[at][2:], "\n".join(lines[at + 1 : end]))
        for at, end in zip(places, ends, strict=True)
    ]


# ---------------------------------------------------------------- what is printed


def compare_output(shown: str, printed: str, marks: dict[str, str], where: str) -> None:
    """Fail where a page shows something else than what was printed."""
    ours, theirs = ([x.rstrip() for x in text.strip().splitlines()] for text in (shown, printed))
    if "varies" in marks:
        ours, theirs = ([blurred(x, marks["varies"]) for x in text] for text in (ours, theirs))
    same = len(ours) == len(theirs) and all(
        close(a, b, int(marks.get("within", "0"))) for a, b in zip(ours, theirs, strict=True)
    )
    if not same:
        difference = difflib.unified_diff(ours, theirs, "the page", "printed", lineterm="")
        pytest.fail(f"{where}: the output differs\n" + "\n".join(difference))


def blurred(line: str, patterns: str) -> str:
    for pattern in patterns.split():
        line = re.sub(pattern, "~", line)
    return re.sub(r" *~ *", " ~ ", line)


def close(one: str, two: str, units: int) -> bool:
    """The same text, with decimals that differ by at most so many units in the last digit."""
    if one == two:
        return True
    if DECIMAL.sub("~", one) != DECIMAL.sub("~", two):
        return False
    for a, b in zip(DECIMAL.findall(one), DECIMAL.findall(two), strict=True):
        digits = len(a.partition(".")[2])
        if (
            digits != len(b.partition(".")[2])
            or abs(float(a) - float(b)) * 10**digits > units + 0.5
        ):
            return False
    return True


# ---------------------------------------------------------------- what is run


def recipe_of(target: str) -> list[str]:
    """The commands of a target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = re.search(rf"^{target}:(?!=).*\n((?:\t.*\n)*)", makefile, flags=re.MULTILINE)
    assert found, "the Makefile has no such target"
    return [line.strip().lstrip("@") for line in found[1].splitlines()]


def run_make(words: list[str], where: str) -> str:
    """A target that is one call of aspire is run; of the others only the name is checked."""
    given = dict(word.split("=", 1) for word in words if "=" in word)
    printed = ""
    for target in [word for word in words if "=" not in word and not word.startswith("-")]:
        recipe = recipe_of(target)
        if len(recipe) == 1 and recipe[0].startswith("$(BIN)/aspire "):
            call = recipe[0].replace("$(ARGS)", given.get("ARGS", ""))
            printed += run_aspire(shlex.split(call)[1:], where)
    return printed


def run_aspire(arguments: list[str], where: str) -> str:
    from aspire.cli import main

    result = CliRunner().invoke(main, arguments)
    if result.exit_code != 0:
        trace = "".join(traceback.format_exception(*result.exc_info)) if result.exc_info else ""
        pytest.fail(f"{where}: exit code {result.exit_code}\n{result.output}\n{trace}")
    return result.stdout


def run_command(command: str, where: str) -> str | None:
    """Run one line of a console block; what it printed, None where it was not run."""
    words = shlex.split(command, comments=True)
    if not words:
        return None
    where = f"{where}: $ {command}"
    program, arguments = Path(words[0]).name, words[1:]
    if program in {"python", "python3"} and arguments[:1] == ["-m"]:
        program, arguments = arguments[1], arguments[2:]
    if program in LEFT_ALONE or program == "venv":
        return None
    assert not {"|", ">", "<", "&&", ";", "&"} & set(words), f"{where}: one plain command, please"
    if program == "make":
        return run_make(arguments, where)
    if program == "aspire":
        return run_aspire(arguments, where)
    if program in {"python", "python3"}:
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, f"{where}\n{done.stdout}\n{done.stderr}"
        return done.stdout
    pytest.fail(f"{where}: do not know how to check this; mark the block as not run, and why")


@dataclass
class Page:
    """A page while its blocks are run in the current directory."""

    name: str
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    printed: str | None = None  # by the last block; None: it was not run

    def run(self, block: Block) -> None:
        where = f"{self.name}, line {block.line}"
        if "not run" in block.marks:
            assert block.marks["not run"], f"{where}: a block that is not run says why"
            self.printed = None
        elif block.language == "text":
            assert self.printed is not None, f"{where}: no block before it that prints this"
            compare_output(block.text, self.printed, block.marks, where)
            self.printed = None
        elif "file" in block.marks:
            self.write(Path(block.marks["file"]), block.text, where)
        elif block.language == "python":
            self.printed = self.execute(block)
        elif block.language in {"console", "sh", "bash", "shell"}:
            self.printed = self.commands(block, where)

    def write(self, target: Path, text: str, where: str) -> None:
        assert not target.is_absolute(), f"{where}: files go into the page's own directory"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n", encoding="utf-8")

    def execute(self, block: Block) -> str:
        # Empty lines in front, so that a traceback shows the line of the page.
        code = "\n" * (block.line - 1) + block.text
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, self.name, "exec"), self.namespace)
        return printed.getvalue()

    def commands(self, block: Block, where: str) -> str:
        every = ""
        for command, shown in commands_of(block):
            printed = run_command(command, where)
            if shown.strip():
                assert printed is not None, f"{where}: $ {command} is not run, and shows an output"
                compare_output(shown, printed, block.marks, f"{where}: $ {command}")
            every += printed or ""
        return every


def run_page(text: str, page: str) -> None:
    """Run the blocks of a page in the current directory."""
    made = Page(page)
    for block in blocks_of(text):
        made.run(block)


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
print(f"{x} and {x / 3:.3f}")
```
<!-- within: 1 -->

```text
1 and 0.334
```
text
<!-- varies: \\d+\\sms h[aeiou]llo -->
```console
$ python sub/hello.py
hullo
$ make lint ARGS='--seeds 5'
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
    assert [block.line for block in blocks_of(EXAMPLE)] == [3, 7, 13, 18, 26, 29]
    run_page(EXAMPLE, "EXAMPLE")
    assert (tmp_path / "sub" / "hello.py").read_text() == 'print("hello")\n'


def test_make_demo_is_run() -> None:
    assert recipe_of("demo") == ["$(BIN)/aspire demo --out demo $(ARGS)"]


PRINTS = "```python\nprint('a 0.50  b\\nc')\n```\n"


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
        ("```text\na\n```", "no block before it"),
        ("```console\n$ git status\nclean\n```", "shows an output"),
        ("```console\n$ aspire --version\naspire, version 0\n```", "the output differs"),
        (PRINTS + "```text\na 0.50  b\n```", "the output differs"),
        (PRINTS + "```text\na 0.50 b\nc\n```", "the output differs"),
        (PRINTS + "<!-- within: 1 -->\n```text\na 0.52  b\nc\n```", "the output differs"),
        (PRINTS + "<!-- within: 1 -->\n```text\na 0.5  b\nc\n```", "the output differs"),
        (PRINTS + "<!-- varies: \\d+ -->\n```text\na 0.50 b\nd\n```", "the output differs"),
        (PRINTS + "```text\na 0.50  b\nc\n```\n```text\na 0.50  b\nc\n```", "no block before"),
    ],
)
def test_a_broken_page_is_noticed(
    text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((AssertionError, ZeroDivisionError, pytest.fail.Exception), match=sentence):
        run_page(text, "EXAMPLE")
