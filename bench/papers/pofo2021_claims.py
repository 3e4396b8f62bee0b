"""The Markdown of docs/results/pofo2021.md: the paper's claims against our figures."""

from __future__ import annotations

import math

import numpy as np
from bench.common import Row, environment_line, table
from bench.goals_report import percent
from bench.papers.page import Parts, claims_section
from bench.papers.verdict import SAME, THEIRS, Claim, Figure, Setting

EXACT = "labels of 50 slots"  # the paper's
SLOTS = "pofo has 50 slots, which the paper finds enough, rotor 500: what is lost to slots can be more than is gained. "
OURS = Setting(algorithm="real sizes and a beam instead of labels in slots")
REMOVED = 1 / 3  # of rotor's overhead
COUNTED = 0.005  # overhead of rotor from which on a share of it means anything
FACTORS = (4.0, 6.0)
OVERHEAD = 0.20
POINT = 0.01  # of overhead: our reading of a practical improvement
SHORT = 60  # stages


def over(row: Row, planner: str) -> float:
    """Overhead, a share of the ideal time."""
    return float(row[planner] / row["ideal"] - 1)


def inner(rows: list[Row]) -> list[Row]:
    """Between 10 and 90 % of the way from rotor's least memory to the peak."""
    return [row for row in rows if 10 <= row["percent"] <= 90]


def removed(rows: list[Row], planner: str) -> float:
    """Share of rotor's overhead that is gone, overheads summed over the limits."""
    return 1 - sum(over(row, planner) for row in rows) / sum(over(row, "rotor") for row in rows)


def profiles_of(rows: list[Row]) -> list[str]:
    """In order."""
    return list(dict.fromkeys(row["profile"] for row in rows))


def by_profile(rows: list[Row], planner: str) -> dict[str, float]:
    """`removed` of each profile."""
    return {name: removed([row for row in rows if row["profile"] == name], planner) for name in profiles_of(rows)}


def spread(found: dict[str, float]) -> str:
    """Least and largest with their names, median."""
    low, high = min(found, key=found.__getitem__), max(found, key=found.__getitem__)
    median = float(np.median(list(found.values())))
    return f"median {percent(median, 0)}, from {percent(found[low], 0)} ({low}) to {percent(found[high], 0)} ({high})"


def at_exact(points: list[Row], slots: list[Row]) -> list[Row]:
    """Points at which the paper's labels were measured too, with the seconds of their plans as `exact`."""
    found = {(row["chain"], row["percent"]): row["coarse"] for row in slots}
    return [
        {**row, "exact": row["ideal"] * (1 + found[row["profile"], row["percent"]])}
        for row in points
        if (row["profile"], row["percent"]) in found
    ]


def claim_removed(rows: list[Row], planner: str, label: str, setting: Setting, why: str = "") -> Claim:
    """Offloading takes away a third of what recomputation costs."""
    found = by_profile(rows, planner)
    counted = [row for row in rows if over(row, "rotor") > COUNTED]
    shares = [1 - over(row, planner) / over(row, "rotor") for row in counted]
    worse = sum(over(row, planner) > over(row, "rotor") + SAME for row in rows)
    limits = sorted({row["percent"] for row in rows})
    return Claim(
        text=f"Offloading ({label}) removes a third or more of rematerialisation's overhead at the same memory",
        paper=">= 33 %",
        setting=setting,
        evidence=(
            (
                "percent removed, a case a profile",
                Figure(
                    values=[100 * value for value in found.values()], low=100 * REMOVED, high=math.inf, form="{:.0f}"
                ),
            ),
        ),
        more=f"by point a third or more on {sum(one >= REMOVED for one in shares)} of {len(counted)}; slower than "
        f"rotor on {worse} of {len(rows)}",
        why=f"{why}Overheads summed over {', '.join(f'{limit:g}' for limit in limits)} % of memory. {spread(found)}.",
    )


def claim_factor(rows: list[Row], planner: str, label: str, setting: Setting) -> Claim:
    """Activations four to six times smaller for less than 20 %."""
    own = {row["profile"]: row for row in rows if row["planner"] == planner}
    rotor = [row["factor"] for row in rows if row["planner"] == "rotor"]
    low, high = FACTORS
    stopped = [name for name, row in own.items() if row["factor"] < low and at_least(row)]
    return Claim(
        text=f"Activations ({label}) take 4 to 6 times less memory at under {percent(OVERHEAD, 0)} of overhead",
        paper=f"{low:g} to {high:g}",
        setting=setting,
        evidence=(
            (
                "peak over the least memory",
                Figure(values=[row["factor"] for row in own.values()], low=low, high=high, nothing=1.0, form="{:.1f}"),
            ),
        ),
        more=f"rotor {min(rotor):.1f} to {max(rotor):.1f}, median {np.median(rotor):.1f}" if rotor else "",
        why="Resident bytes apart. "
        + (
            f"{', '.join(stopped)} are below {low:g} at the least memory of any plan, where the largest stage alone "
            "does not allow more."
            if stopped
            else ""
        ),
    )


def at_least(row: Row) -> bool:
    """Whether the least memory of any plan is what limits the factor."""
    return bool(row["factor"] >= row["most"] * 0.995)


def claim_slots(rows: list[Row]) -> Claim:
    """50 slots are enough."""
    own = [row for row in rows if row.get("fine") is not None and "stages" not in row["chain"]]
    lost = [100 * (row["coarse"] - row["fine"]) for row in own]
    long = [100 * lost_to_slots(row) for row in rows if row["stages"] > SHORT]
    more = sum(row["coarse_slots"] > 50 for row in rows)
    return Claim(
        text="50 slots of memory are enough: finer ones bring no practical improvement (B.4)",
        paper="no improvement",
        evidence=(
            (
                "points of overhead that 100 slots gain on 50",
                Figure(values=lost, low=-math.inf, high=100 * POINT, form="{:.1f}"),
            ),
        ),
        more=f"on chains of more than {SHORT} stages real labels gain up to {max(long):.1f} points" if long else "",
        why=f"We read practical as {100 * POINT:g} point of overhead."
        + (f" On {more} points 50 slots have no plan at all and more were taken." if more else ""),
    )


def lost_to_slots(row: Row) -> float:
    """Overhead of 50 slots above that of the best finer plan."""
    fine = row.get("fine")
    return float(row["coarse"] - min(row["real"], row["real"] if fine is None else fine))


def removed_table(points: list[Row], least: list[Row]) -> str:
    """By profile."""
    own = inner(points)
    pieces, whole = by_profile(own, "pofo"), by_profile(own, "pofo, whole")
    factors = {(row["profile"], row["planner"]): row for row in least}
    cells = []
    for name in pieces:
        rows = [row for row in own if row["profile"] == name]
        means = [100 * float(np.mean([over(row, planner) for row in rows])) for planner in ("rotor", "pofo")]
        pofo, rotor = factors[name, "pofo"], factors[name, "rotor"]
        cells.append(
            [
                name,
                *(f"{mean:.1f}" for mean in means),
                f"{100 * float(np.mean([over(row, 'bound') for row in rows])):.1f}",
                percent(pieces[name], 0),
                percent(whole[name], 0),
                f"{rotor['factor']:.1f}",
                f"{pofo['factor']:.1f}",
                f"{pofo['most']:.1f}",
            ]
        )
    head = [
        "profile",
        "rotor, mean overhead (%)",
        "pofo",
        "lower bound",
        "removed, pieces",
        "removed, whole",
        "rotor: peak / memory at 20 %",
        "pofo",
        "most possible",
    ]
    return table(head, cells)


def slots_table(rows: list[Row]) -> str:
    """By chain, overheads over all limits."""
    cells = []
    for name in dict.fromkeys(row["chain"] for row in rows):
        own = [row for row in rows if row["chain"] == name]
        fine = [row["fine"] for row in own if row.get("fine") is not None]
        worst = max(own, key=lost_to_slots)
        cells.append(
            [
                name,
                own[0]["stages"],
                f"{100 * float(np.mean([row['coarse'] for row in own])):.1f}",
                f"{100 * float(np.mean(fine)):.1f}" if fine else "-",
                f"{100 * float(np.mean([row['real'] for row in own])):.1f}",
                f"{100 * lost_to_slots(worst):.1f} at {worst['percent']:g} %",
            ]
        )
    head = [
        "chain",
        "stages",
        "50 slots, exact (%)",
        "100 slots, exact",
        "real labels",
        "most lost by 50 slots (points)",
    ]
    return table(head, cells)


def claims(parts: Parts) -> list[Claim]:
    """All rows: the paper's labels first, then our default."""
    points, least = parts["points"], parts["least"]
    exact = at_exact(points, parts["slots"])
    return [
        claim_removed(exact, "exact", EXACT, THEIRS, SLOTS),
        claim_removed(inner(points), "pofo", "pofo's default", OURS),
        claim_removed(inner(points), "pofo, whole", "pofo's default, whole transfers", OURS),
        claim_factor(least, "exact", EXACT, THEIRS),
        claim_factor(least, "pofo", "pofo's default", OURS),
        claim_slots(parts["slots"]),
    ]


def report(parts: Parts, drawn: list[tuple[str, str]], environment: Row) -> str:
    """Claims, tables, all pictures."""
    points, least, slots = parts["points"], parts["least"], parts["slots"]
    sections = [
        "# POFO, NeurIPS 2021",
        "Beaumont, Eyraud-Dubois, Shilova: Efficient Combination of Rematerialization and Offloading for Training "
        f"DNNs. Written by `python -m bench.papers.pofo2021` from {len(profiles_of(points))} profiles. 0 % of memory "
        "is the least that rotor needs, 100 % the peak of the plain run. All makespans are simulated. Overheads are "
        "relative to the ideal time: that of all runs, without recomputation or waits. rotor and pofo run with their "
        f"defaults, offload searches for {environment['time_limit']:g} s. Unless said otherwise, transfers are in "
        "pieces of 16 MiB. That is close to the paper's model, where transfers may pause. points.json beside the "
        "pictures has every number.",
        environment_line(environment)
        + " Makespans do not depend on the machine, except for offload, whose search has a time limit.",
        "What differs from the paper: sizes are those of today's torchvision and of GPT-2. Times come from a "
        "roofline model of a V100 with a link of 12.2 GB/s, not from measurements (docs/profiles.md). Forwards that "
        "do not save need workspace for what they do not keep. The recurrences are those corrected in docs/errata.md.",
        *claims_section(claims(parts)),
        "## By profile",
        "Means over 10 to 90 % of memory. The last three columns say by which factor the peak memory, without "
        f"resident bytes, can be reduced with at most {percent(OVERHEAD, 0)} of overhead, and at all.",
        removed_table(points, least),
        "## How many slots",
        "Mean overhead at 10, 30, 50 and 70 % of memory. Profiles have their own link; for the others, the link "
        "needs four times as long as the forward phase to move everything that it saves. Real labels are pofo's "
        "default. Rounding up a size may cost a whole slot, so the loss with 50 slots grows with the number of "
        "stages that are kept. Plans with exact labels also begin the backward phase after the last offload, as the "
        "paper's do; the column of 100 slots shows the effect of slots alone.",
        slots_table(slots),
        "## Pictures",
        "Memory is in percent of the plain run's peak, without resident bytes: 25 % is a fourth of it. Where the "
        "curve of offload leaves the picture, its overhead is the largest of all; so is that of rotor at its least "
        "memory.",
    ]
    for file, title in drawn:
        sections.append(f"### {title}\n\n![{title}](pofo2021/{file})")
    return "\n\n".join(sections) + "\n"
