"""What all pages of the papers do alike: points to keep, and pages that are written from kept points only."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.common import RESULTS, ROOT, Row, environment, table
from bench.goals import compact
from bench.papers.verdict import HEAD, RULE, Claim

Parts = dict[str, list[Row]]
Measure = Callable[[argparse.Namespace], tuple[Parts, Row]]
Drawn = list[Any]


def points(name: str, folder: Path = RESULTS) -> tuple[Row, Parts]:
    """The environment and the rows of each part that a run has kept."""
    found = json.loads((folder / name / "points.json").read_text(encoding="utf-8"))
    parts = found["parts"].items()
    return found["environment"], {
        part: [dict(zip(one["columns"], row, strict=True)) for row in one["rows"]] for part, one in parts
    }


def claims_section(claims: Sequence[Claim]) -> list[str]:
    """The rule and the table of claims."""
    return ["## Claims", RULE, table(HEAD, [claim.row() for claim in claims])]


def arguments(name: str, document: str | None) -> argparse.ArgumentParser:
    """What every script of a paper takes."""
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few small problems, no cache")
    parser.add_argument("--judge", action="store_true", help="measure nothing: write the page from the points kept")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "bench" / f"{name}.jsonl")
    parser.add_argument("--out", type=Path, default=RESULTS, help=f"folder of {name}.md and {name}/")
    return parser


def publish(
    name: str,
    given: argparse.Namespace,
    measure: Measure,
    pictures: Callable[[Parts, Path], Drawn],
    report: Callable[[Parts, Drawn, Row], str],
) -> None:
    """Measure, keep the points with six digits, and write the page and its pictures from what was kept."""
    folder = given.out / name
    if given.judge:
        where, parts = points(name)
    else:
        parts, more = measure(given)
        folder.mkdir(parents=True, exist_ok=True)
        text = compact({"environment": {**environment(), **more}, "parts": parts})
        (folder / "points.json").write_text(text, encoding="utf-8")
        where, parts = points(name, given.out)
    drawn = pictures(parts, folder)
    (given.out / f"{name}.md").write_text(report(parts, drawn, where), encoding="utf-8")
    print(f"wrote {given.out / f'{name}.md'} and {len(drawn)} pictures")
