"""The commands of docs/cli.md run, in their order, and end as the page says."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from memsched.cli.app import command_line

PROFILES = all(importlib.util.find_spec(package) is not None for package in ("torch", "torchvision"))
PAGE = Path(__file__).parents[1] / "docs" / "cli.md"


def commands() -> list[tuple[str, int]]:
    """Each line `$ memsched ...` of a console block, and the status that its comment announces."""
    blocks = re.findall(r"^```console\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    announced = (re.search(r"# exit status (\d+)$", line) for line in lines)
    return [(line, int(found[1]) if found else 0) for line, found in zip(lines, announced, strict=True)]


def files() -> list[tuple[str, str]]:
    """The files that the page shows: TOML by the names in their first lines, CSV by those of their blocks."""
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(r"^```(?:toml\n# |csv )(\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in files():
        Path(name).write_text(text, encoding="utf-8")
    found = commands()
    assert len(found) > 10
    for line, status in found:
        name, *arguments = shlex.split(line, comments=True)
        assert name == "memsched"
        if {"chain.json", "fit"} & set(arguments) and not PROFILES:
            continue  # it looks at a model of torchvision
        if "export" in arguments:
            continue  # its plan is made in Python; test_cli_export runs the command
        outcome = CliRunner().invoke(command_line, arguments, prog_name=name)
        assert outcome.exit_code == status, f"{line}\n{outcome.output}"


def test_every_command_and_exit_status_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in command_line.commands:
        assert any(line.startswith(f"memsched {name} ") for line, _ in commands()), name
        assert f"`memsched {name} " in text
    assert {status for _, status in commands()} == {0, 2, 3, 4}


def test_the_comparison_in_the_readme_is_what_the_command_prints() -> None:
    """All of it but the seconds that planning took."""
    text = (PAGE.parents[1] / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"^(planner .*?)\n\n\* the fastest", text, re.MULTILINE | re.DOTALL)
    command = re.search(r"memsched (compare .*?)\n", text)
    assert shown
    assert command
    outcome = CliRunner().invoke(command_line, shlex.split(command[1]), env={"COLUMNS": "200"})
    assert outcome.exit_code == 0, outcome.output
    printed = without_seconds(outcome.stdout)
    for row in without_seconds(shown[1]):
        assert row in printed, row


def without_seconds(table: str) -> list[list[str]]:
    """The words of each row of a comparison, without the time that its plan took."""
    rows = [re.sub(r" \d[\d.]* (?:s|ms|us)$", "", line.rstrip()).split() for line in table.splitlines()]
    return [row for row in rows if row and not set(row[0]) <= {"─"}]
