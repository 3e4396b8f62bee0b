"""The commands of README.md and docs/cli.md that look at models run, and print the figures that the page shows."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from memsched.cli.app import command_line

ROOT = Path(__file__).parents[2]
COMMANDS = (
    [
        (page, line)
        for page in ("README.md", "docs/cli.md")
        for line in re.findall(
            r"^(?:\$ )?memsched (?:fit|profile) .*", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE
        )
    ]
    if (ROOT / "README.md").exists()
    else []
)


def test_there_are_some() -> None:
    assert {page for page, line in COMMANDS if " fit " in line} == {"README.md", "docs/cli.md"}


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=[line[:50] for _, line in COMMANDS])
def test_it_runs(page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = shlex.split(line.removeprefix("$ "), comments=True)[1:]
    family = arguments[arguments.index("--model") + 1].partition(":")[0]
    if importlib.util.find_spec(family) is None:
        pytest.skip(f"{family} is not installed")
    # The largest batches take minutes, and the page of the README shows no figures, which depend on the time limit.
    brief = ["--no-largest", *(["--time-limit", "0.5"] if page == "README.md" else [])] if "fit" in arguments else []
    done = CliRunner().invoke(command_line, [*arguments, *brief], prog_name="memsched", env={"COLUMNS": "250"})
    assert done.exit_code == 0, done.output
    shown = (ROOT / page).read_text(encoding="utf-8").partition(f"{line}\n")[2].partition("```")[0]
    said = re.findall(
        r"^(plain PyTorch|forward, backward|optimizer's step|what to do) +(.*\S)", done.output, re.MULTILINE
    )
    for name, words in said if page == "docs/cli.md" else []:
        assert re.search(rf"^{name} +{re.escape(words)}$", shown, re.MULTILINE), (name, words)
