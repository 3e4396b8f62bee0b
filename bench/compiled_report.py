"""The page of bench.compiled."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import torch
from bench.common import Row, environment, environment_line, table
from bench.compiled_models import NETWORKS, WAYS

ALWAYS, HALF, KEPT = 1.03, 0.9, 1.05


def report(measured: Sequence[Row]) -> str:
    """Verdicts first, then the tables."""
    rows = [row for row in measured if row["network"] in NETWORKS]
    little = [row for row in measured if row["network"] not in NETWORKS]
    named = {(row["network"], row["method"]): row for row in rows}
    networks = list(dict.fromkeys(row["network"] for row in rows))
    intro = (
        "One training step (forward with the loss inside, backward; gradients begin as None) on the CPU with one "
        'thread, float32, mode "eager". The peak is the largest number of bytes of live storages in addition to '
        'parameters, buffers and inputs: loss, activations and gradients. One meter counts all runs. "Ours" is the '
        "step planned for exactly the peak that was measured for the other run. Time is CPU time of the process. The "
        "runs of a network take turns, forwards and backwards through the list; a ratio is the median of the ratios "
        "within the rounds. `checkpoint 1/k` has every k-th block under `torch.utils.checkpoint(use_reentrant=False)`. "
        "`selective checkpoint` has every block there, but keeps the results of matrix products, convolutions and "
        "attention. `stock s` is the same capture and the same generated code, called by AOTAutograd, with the min-cut "
        "partitioner of PyTorch and `activation_memory_budget` s. No link to a host is used, so `save_on_cpu` is not "
        "compared. The operations of `tiny` compute almost nothing: it shows the cost of Python, and does not count "
        "for the goals beside checkpointing."
    )
    parts = [
        "# Compiled steps beside checkpointing",
        "Written by `python -m bench.compiled`; compiled.csv beside it has every number. "
        + environment_line(environment()).replace("; memsched", f"; torch {torch.__version__}, memsched"),
        intro,
        "## Goals",
        "\n".join(f"* {line}" for line in verdicts(rows, named, networks)),
        "## Small steps that keep everything",
        "Linear layers and rectifiers; the sum of what comes out is the loss, outside of the compiled model. Ten steps "
        "are timed at a time, and the ways take turns; times are relative to plain PyTorch, and in the last column to "
        '`torch.compile` with Inductor. `Dynamo` is `torch.compile(backend="eager")`, which runs PyTorch\'s own '
        "operations and autograd: what it takes, no backend of torch.compile can save. `AOTAutograd` is "
        '`backend="aot_eager"`. `ours` leaves out what AOTAutograd does around a graph that has no need of it.',
        small(little),
        "## At the peak of each other run",
        "MB are 10^6 bytes; times are relative to plain PyTorch. `ours over it` is our time over that of the other "
        "run; `25 .. 75 %` are the quartiles of this ratio.",
        pairs(rows, named),
        "## The least budget",
        "Ours: the least peak for which bisection finds a plan, to one percent.",
        least(named, networks),
        "## Prediction and measurement",
        "The peak is the one counted while the step ran, divided by the predicted one. The time is the CPU time of a "
        "step, divided by the predicted one. The last column is the time that all recomputation adds to the plan that "
        "keeps everything: as told by the plans, and as measured. A plan holds what the model returns until the step "
        "ends, because the caller may do so. Here the caller drops everything but the loss after the forward, so "
        "where logits are returned the count is below the plan by their bytes. Operations are timed one by one before "
        "the first step.",
        predictions(rows, named, networks),
    ]
    return "\n\n".join(parts) + "\n"


def verdicts(rows: Sequence[Row], named: dict[tuple[str, str], Row], networks: Sequence[str]) -> list[str]:
    """Each goal, and whether it is met."""
    found = []
    beside = [row for row in rows if row["at"].startswith("checkpoint") and row["network"] != "tiny"]
    asked = [row for row in rows if row["method"].startswith("checkpoint") and row["network"] != "tiny"]
    slow = [row for row in beside if row["ratio"] > ALWAYS]
    fast = [row for row in beside if row["ratio"] <= HALF]
    none = len(asked) - len(beside)
    ratios = [row["ratio"] for row in beside]
    found.append(
        f"At the peak of a run with every k-th block checkpointed, k = 1, 2, 4, at most {ALWAYS} of its time: "
        f"{said(not slow and not none)}. Above it at {len(slow)} of {len(asked)} points, without a plan at {none}; "
        f"mean {statistics.mean(ratios):.3f}, largest {max(ratios):.3f}."
        if ratios
        else "Nothing was checkpointed."
    )
    found.append(
        f"At half of these points at most {HALF} of its time: {said(2 * len(fast) >= len(asked))}. This holds at "
        f"{len(fast)} of {len(asked)}."
    )
    large = [
        name
        for name in networks
        if name != "tiny" and named[name, "plain"]["least"] > named[name, "checkpoint 1/1"]["peak"]
    ]
    found.append(
        "The least budget is at most the peak with every block checkpointed: "
        + said(not large)
        + (f"; above it for {', '.join(large)}." if large else ".")
    )
    kept = [named[name, "ours at plain"]["ratio"] for name in networks if (name, "ours at plain") in named]
    costly = [n for n in networks if (n, "ours at plain") not in named or named[n, "ours at plain"]["ratio"] > KEPT]
    found.append(
        f"At plain PyTorch's own peak at most {KEPT} of its time, on tiny tensors, too: {said(not costly)}"
        + (f"; above it for {', '.join(costly)}" if costly else "")
        + f". Mean {statistics.mean(kept):.3f}, largest {max(kept):.3f}."
    )
    stock = [row for row in rows if row["at"].startswith("stock")]
    if stock:
        slower = sum(row["ratio"] > 1.02 for row in stock)
        asked = [row for row in rows if row["method"].startswith("stock")]
        found.append(
            "At the peaks of the stock runs never slower by more than 2 %: "
            f"{said(not slower and len(stock) == len(asked))}. Slower at {slower} of {len(asked)} points, without a "
            f"plan at {len(asked) - len(stock)}; mean {statistics.mean(row['ratio'] for row in stock):.3f}."
            + failures(networks, {row["network"] for row in asked})
        )
    wrong = [row for row in rows if row["differs"] and row["method"].startswith("ours")]
    theirs = [row for row in rows if row["differs"] and not row["method"].startswith("ours")]
    found.append(
        "Loss, gradients and buffers of ours are those of plain PyTorch, bit for bit: "
        + said(not wrong)
        + (f"; not at {called(wrong)}" if wrong else "")
        + "."
        + (f" Of the other runs these differ: {called(theirs)}." if theirs else "")
    )
    above = [row for row in rows if row["budget"] != "" and row["peak"] > row["budget"]]
    found.append(
        f"The counted peak is at most the budget: {said(not above)}"
        + (f"; above at {called(above)}." if above else ".")
    )
    return found


def small(rows: Sequence[Row]) -> str:
    """Small steps: what the ways take, and a line of means and worst."""
    named = {(row["network"], row["method"]): row for row in rows}
    steps, ways = list(dict.fromkeys(row["network"] for row in rows)), [way for way in WAYS if way != "plain"]
    lines = []
    for step in steps:
        ratios = [named[step, way]["ratio"] if (step, way) in named else None for way in ways]
        told = ["" if one is None else f"{one:.3f}" for one in ratios]
        lines.append([step, f"{1e6 * named[step, 'plain']['seconds']:.0f}", *told])
    lines_said = []
    for way, goal in (("ours", KEPT), ("Dynamo", None), ("AOTAutograd", None), ("ours, Inductor", 1.0)):
        found = {step: named[step, way]["ratio"] for step in steps if (step, way) in named}
        if found:
            worst = max(found, key=lambda step: found[step])
            line = f"{way}: {statistics.mean(found.values()):.3f} on average, {found[worst]:.3f} at worst ({worst})"
            lines_said.append(f"* {line}" + (f"; at most {goal} is {said(found[worst] <= goal)}." if goal else "."))
    return "\n".join(lines_said) + "\n\n" + table(["layers", "plain, us", *ways[:-1], "ours over Inductor"], lines)


def failures(networks: Sequence[str], ran: set[str]) -> str:
    """Where stock has no row."""
    failed = [name for name in networks if name not in ran]
    reason = "it saves running statistics, which the step then changes, and autograd refuses the backward"
    return f" PyTorch's partitioner failed on {', '.join(failed)}: {reason}." if failed else ""


def said(met: bool) -> str:
    """Of a goal."""
    return "met" if met else "**not met**"


def called(rows: Iterable[Row]) -> str:
    """Rows by name."""
    return ", ".join(f"{row['network']} {row['method']} ({row['differs'] or 'peak'})" for row in rows)


def pairs(rows: Sequence[Row], named: dict[tuple[str, str], Row]) -> str:
    """Each other run, and ours for its peak."""
    lines = []
    for row in rows:
        if row["method"].startswith("ours"):
            continue
        plain = named[row["network"], "plain"]["seconds"]
        cells = [row["network"], row["method"], f"{row['peak'] / 1e6:.2f}", f"{row['seconds'] / plain:.3f}"]
        ours = named.get((row["network"], f"ours at {row['method']}"))
        if ours is None:
            lines.append([*cells, "no plan", "", "", "", ""])
            continue
        ratio = f"{ours['ratio']:.3f}"
        limit = KEPT if row["method"] == "plain" else ALWAYS
        lines.append(
            [
                *cells,
                f"{ours['seconds'] / plain:.3f}",
                f"**{ratio}**" if ours["ratio"] > limit else ratio,
                f"{ours['ratio_low']:.3f} .. {ours['ratio_high']:.3f}",
                ours["again"],
                f"{ours['peak'] / 1e6:.2f}",
            ]
        )
    header = ["network", "run", "peak, MB", "time", "ours", "ours over it", "25 .. 75 %", "recomputed", "our peak, MB"]
    return table(header, lines)


def least(named: dict[tuple[str, str], Row], networks: Sequence[str]) -> str:
    """Our least budget beside every block checkpointed."""
    lines = []
    for name in networks:
        plain, every = named[name, "plain"], named[name, "checkpoint 1/1"]
        ours = plain["least"]
        numbers = [f"{value / 1e6:.2f}" for value in (plain["peak"], every["peak"], ours)]
        lines.append([name, plain["blocks"], *numbers, f"{ours / every['peak']:.2f}"])
    return table(["network", "blocks", "plain, MB", "every block, MB", "ours, MB", "ours over every block"], lines)


def predictions(rows: Sequence[Row], named: dict[tuple[str, str], Row], networks: Sequence[str]) -> str:
    """Peaks and times as planned and as measured."""
    lines = []
    for name in networks:
        mine = [row for row in rows if row["network"] == name and row["budget"] != ""]
        if not mine:
            continue
        peaks = [row["peak"] / row["predicted_peak"] for row in mine]
        times = [row["seconds"] / row["predicted_seconds"] for row in mine]
        kept = named.get((name, "ours at plain"))
        more = [row for row in mine if kept is not None and row["predicted_seconds"] > 1.02 * kept["predicted_seconds"]]
        assert kept is not None or not more
        told = sum(row["predicted_seconds"] - kept["predicted_seconds"] for row in more) if kept else 0.0
        real = sum(row["seconds"] - kept["seconds"] for row in more) if kept else 0.0
        lines.append(
            [
                name,
                f"{min(peaks):.3f} .. {max(peaks):.3f}",
                f"{min(times):.2f} .. {max(times):.2f}",
                f"{1e3 * told:.1f} ms told, {1e3 * real:.1f} ms measured" if more else "",
            ]
        )
    return table(["network", "peak", "time", "recomputation, in all"], lines)
