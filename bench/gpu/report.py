"""The rows of the benchmark as JSON, Markdown and pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from bench.common import Row, table
from bench.gpu.plots import draw

from memsched.support.formats import format_bytes, format_seconds

NAMES = {
    "plain": "no plan",
    "plan": "memsched",
    "backend": "memsched in torch.compile",
    "checkpoint": "checkpoint per block",
    "checkpoint_sequential": "checkpoint_sequential",
    "save_on_cpu": "save_on_cpu",
    "compile": "torch.compile",
}


def name_of(row: Row) -> str:
    """A method with its setting, in words."""
    name = NAMES.get(row["method"], str(row["method"]))
    return f"{name}, budget {row['setting']}" if row["method"] == "compile" else name


def write(rows: Sequence[Row], folder: Path) -> None:
    """gpu.json, gpu.md and a picture of each network."""
    networks = list(dict.fromkeys((row["model"], row["precision"]) for row in rows))
    parts = [_head(rows)]
    for model, precision in networks:
        own = [row for row in rows if (row["model"], row["precision"]) == (model, precision)]
        picture = folder / f"gpu-{model}-{precision}.png"
        drawn = draw(own, picture)
        parts += [f"## {model}, {precision}", *([f"![step time against memory]({picture.name})"] if drawn else [])]
        parts += [part for part in (_profile(own), _all(own), _equal(own), _rest(own)) if part]
    (folder / "gpu.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    (folder / "gpu.json").write_text(json.dumps(list(rows), indent=1) + "\n", encoding="utf-8")


def _head(rows: Sequence[Row]) -> str:
    title = "# Planned steps on a device, measured"
    where = sorted({f"{row['device']}, torch {row['torch']}, {row['date']}" for row in rows if "device" in row})
    if not where:
        return f"{title}\n\nWritten by `python -m bench.gpu`. Nothing is measured yet: it needs a GPU."
    small = any(row["small"] for row in rows)
    peak = (
        "The networks are tiny and the budgets not enforced: peaks are bytes counted op by op. This run only shows "
        "that the benchmark works."
        if small
        else "Each point ran in a fresh process. The budget of a plan was enforced: PyTorch's allocator could reserve "
        "no more than the budget less the CUDA context. A peak is what it reserved, and the context."
    )
    return (
        f"{title}\n\nWritten by `python -m bench.gpu`. {'; '.join(where)}.\n\n{peak} Times are medians of forward and "
        "backward; the optimiser's step is not in them, for no plan changes it."
    )


def _profile(rows: Sequence[Row]) -> str:
    found = [row for row in rows if row["method"] == "profile" and row["status"] == "ok"]
    if not found:
        return ""
    row = found[0]
    duplex = "both ways at once" if row["duplex"] else "one way at a time"
    return (
        f"{row['operations']} operations, captured and timed in {row['planning_seconds']:.0f} s. Predicted: "
        f"{format_bytes(row['predicted_peak'])} without a plan; no plan needs less than "
        f"{format_bytes(row['min_memory'])}. "
        f"Link {row['link'] / 1e9:.1f} GB/s, {duplex}."
    )


def _over(row: Row, plain: Row | None) -> str:
    return f"{100 * (row['seconds'] / plain['seconds'] - 1):+.1f} %" if plain else ""


def _all(rows: Sequence[Row]) -> str:
    """All that ran, by memory."""
    ran = sorted((row for row in rows if row["status"] == "ok" and "seconds" in row), key=lambda row: row["peak"])
    plain = next((row for row in ran if row["method"] == "plain"), None)
    header = ["method", "budget", "peak", "predicted peak", "time", "predicted time", "over no plan"]
    cells = []
    for row in ran:
        planned = row["method"] in ("plan", "backend")
        cells.append(
            [
                name_of(row),
                format_bytes(row["budget"]) if planned else "",
                format_bytes(row["peak"]),
                format_bytes(row["predicted_peak"]) if planned else "",
                format_seconds(row["seconds"]),
                format_seconds(row["predicted_seconds"]) if planned else "",
                _over(row, plain),
            ]
        )
    return table(header, cells) if cells else ""


def _equal(rows: Sequence[Row]) -> str:
    """Our plan with the memory that each rival took."""
    cells = []
    by_label = {row["label"]: row for row in rows}
    for label, ours in by_label.items():
        kind, _, other = label.partition(" ")
        rival = by_label.get(other) if kind in ("equal", "backend") else None
        if rival is None:
            continue
        result = [ours["status"], "", ""]
        if ours["status"] == "ok":
            result = [format_seconds(ours["seconds"]), format_bytes(ours["peak"]), _over(ours, rival)]
        cells.append(
            [name_of(rival), name_of(ours), format_bytes(rival["peak"]), format_seconds(rival["seconds"]), *result]
        )
    if not cells:
        return ""
    header = ["rival", "ours", "its peak", "its time", "our time at that budget", "our peak", "time over the rival's"]
    return "At equal memory:\n\n" + table(header, cells)


def _rest(rows: Sequence[Row]) -> str:
    """What did not run, and the proof."""
    lines = [
        f"- {row['label']}: {row['status']}{', ' + row['reason'].splitlines()[0][:300] if row.get('reason') else ''}"
        for row in rows
        if row["status"] != "ok" or row["method"] == "verify"
    ]
    return "\n".join(lines)
