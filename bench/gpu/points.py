"""What is measured, the most important first. What a point needs to know from others, it waits for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.common import Row

# The first of each network and precision, then the rest: a run that is cut short has something of all.
ROUNDS = (
    ("plain", "profile", "checkpoint", "equal checkpoint", "plan 0.4", "save_on_cpu", "equal save_on_cpu"),
    ("plan 0.03", "plan 0.2", "verify", "backend 0.4", "checkpoint_sequential", "equal checkpoint_sequential"),
    ("backend checkpoint", "backend 0.03", "backend 0.2", "backend save_on_cpu", "plan 0.6", "plan 0.8"),
)
RIVALS = ("checkpoint", "checkpoint_sequential", "save_on_cpu", "compile")


def rounds(budgets: int, compiled: tuple[float, ...]) -> tuple[tuple[str, ...], ...]:
    """The labels of the points of one network, in rounds; `budgets` says how many of our own budgets to take."""
    fractions = [label for one in ROUNDS for label in one if label.startswith("plan ")]
    dropped = set(fractions[budgets:])
    first, *others = (tuple(label for label in one if label not in dropped) for one in ROUNDS)
    stock = tuple(f"{kind}compile {f:g}" for f in compiled for kind in ("", "equal "))
    return tuple(one for one in (first, stock, *others) if one)


def pending(
    networks: list[tuple[str, str]], labels: tuple[tuple[str, ...], ...], rows: Mapping[str, Row]
) -> Iterator[tuple[str, Row]]:
    """Keys and points that are not measured and whose needs are known, in order of importance.

    Parameters
    ----------
    networks : list of (model, precision)
    labels
        From `rounds`.
    rows
        What is measured, by key.
    """
    for one in labels:
        for model, precision in networks:
            for label in one:
                key = f"{model} {precision} {label}"
                if key not in rows:
                    point = _point(model, precision, label, rows)
                    if point is not None:
                        yield key, point


def _point(model: str, precision: str, label: str, rows: Mapping[str, Row]) -> Row | None:
    """The point of a label; None while something that it needs is not known, or never will be."""
    method, _, setting = label.partition(" ")
    point: Row = {
        "model": model,
        "precision": precision,
        "label": label,
        "method": method,
        "setting": setting,
        "budget": None,
        "context": 0,
    }
    if method not in ("plan", "equal", "backend", "verify"):
        return point
    profile = rows.get(f"{model} {precision} profile", {})
    if profile.get("status") != "ok":
        return None
    point["context"] = profile.get("context", 0)
    if method == "equal" or setting in RIVALS:
        rival = rows.get(f"{model} {precision} {setting}", {})
        if rival.get("status") != "ok":
            return None
        return {**point, "method": "plan" if method == "equal" else method, "budget": rival["peak"]}
    plain = rows.get(f"{model} {precision} plain", {})
    most: Any = plain.get("peak") if plain.get("status") == "ok" else profile["predicted_peak"]
    least = profile["min_memory"]
    fraction = 0.4 if method == "verify" else float(setting)
    return {**point, "budget": int(least + fraction * max(0, most - least))}
