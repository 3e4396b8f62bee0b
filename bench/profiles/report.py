"""Compare two folders of chains and write the tables of docs/results/profiles.md.

python -m bench.profiles.report --before FOLDER --after FOLDER --out FILE
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from bench.common import RESULTS, table
from bench.profiles.chains import COLUMNS
from bench.profiles.differences import relative

import memsched as ms

MARK = "<!-- tables: python -m bench.profiles.report -->"
Documents = dict[str, dict[str, Any]]


def main() -> None:
    """Put the tables behind the mark in the file, and keep what people wrote before it."""
    parser = argparse.ArgumentParser(prog="python -m bench.profiles.report", description=__doc__)
    parser.add_argument("--before", type=Path, required=True, help="folder of chains")
    parser.add_argument("--after", type=Path, required=True, help="folder of chains")
    parser.add_argument("--out", type=Path, default=RESULTS / "profiles.md")
    given = parser.parse_args()
    old, new = read(given.before), read(given.after)
    names = sorted(old.keys() & new.keys())
    text = given.out.read_text(encoding="utf-8").partition(MARK)[0] if given.out.exists() else ""
    parts = [text + MARK, "## Columns", columns(old, new, names), "## Profiles", profiles(old, new, names)]
    given.out.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def read(folder: Path) -> Documents:
    """The chains of a folder by name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def columns(old: Documents, new: Documents, names: list[str]) -> str:
    """How far each column differs, over all profiles."""
    rows = []
    for column in (*COLUMNS, "names", "parameters"):
        pairs = [
            pair for name in names for pair in zip(_values(old[name][column]), _values(new[name][column]), strict=True)
        ]
        same = sum(old[name][column] == new[name][column] for name in names)
        numbers = column != "names"
        gaps = [relative(a, b) for a, b in pairs] if numbers else []
        rows.append(
            (
                column,
                f"{same} of {len(names)}",
                f"{sum(a != b for a, b in pairs)} of {len(pairs)}",
                sum(gap > 0.01 for gap in gaps) if numbers else "",
                f"{100 * max(gaps):.2f} %" if numbers else "",
                f"{_change(sum(a for a, _ in pairs), sum(b for _, b in pairs))}" if numbers else "",
            )
        )
    header = ("column", "profiles that are equal", "entries that differ", "by over 1 %", "most", "change of the sum")
    return table(header, rows)


def profiles(old: Documents, new: Documents, names: list[str]) -> str:
    """What planners see of it: memory and time of each profile."""
    rows = []
    for name in names:
        before, after = ms.Chain.from_json(old[name]), ms.Chain.from_json(new[name])
        rows.append(
            (
                name,
                *(_both(find(before), find(after), 1e6) for find in (ms.min_memory, ms.peak_memory)),
                _both(_seconds(before), _seconds(after), 1e-3),
                f"{(after.resident - before.resident) / 1e6:+.2f}",
            )
        )
    header = ("profile", "min_memory, MB", "peak_memory, MB", "plain makespan, ms", "resident, MB")
    return table(header, rows)


def _values(column: Any) -> list[Any]:
    return column if isinstance(column, list) else [column]


def _seconds(chain: ms.Chain) -> float:
    return float(chain.forward_time.sum() + chain.backward_time.sum())


def _both(before: float, after: float, unit: float) -> str:
    return f"{before / unit:.1f} → {after / unit:.1f} ({_change(before, after)})"


def _change(before: float, after: float) -> str:
    return f"{100 * (after / before - 1):+.2f} %"


if __name__ == "__main__":
    main()
