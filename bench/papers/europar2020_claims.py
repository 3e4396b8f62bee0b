"""The Markdown of docs/results/europar2020.md: the paper's claims against our figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from bench.common import Row, environment_line, table
from bench.papers.page import Parts, claims_section
from bench.papers.verdict import ALWAYS, MUCH, OFTEN, SAME, THEIRS, Cases, Claim, Figure, Ordering, Runs, Setting

FAMILIES = ("resnet", "densenet", "inception")
SHOWN = ("dynprog", "greedy", "vdnn", "autoswap", "tflms", "offload")
COLUMNS = {"hash": 'method="hash"', "paper": 'ties="paper"', "dynprog": 'ties="simulate"'}
SETTINGS = {
    "hash": THEIRS,
    "paper": THEIRS,
    "dynprog": Setting(
        algorithm="if the model values both sets alike, GREEDY's is taken where its simulated makespan is shorter"
    ),
}
AUTOSWAP = Setting(
    algorithm="the paper does not name the four scores of AUTOSWAP, and its authors' code lacks one of ours"
)
RATIO = 1.2  # of the paper
CLOSE = 1.02  # our reading of "almost optimal"
LITTLE = 30.0  # percent, our reading of "little memory"
MEET = 10.0  # points between the spike and the limit where the terms meet

Numbers = npt.NDArray[np.float64]


def bound(row: Row) -> float:
    """LB of Proposition 3."""
    return float(max(row["compute"], row["transfer"]))


def ratios(rows: Sequence[Row], planner: str) -> Numbers:
    """Makespan over LB where the planner has a plan."""
    return np.array([row[planner] / bound(row) for row in rows if row[planner] is not None])


def where(row: Row) -> str:
    """One point."""
    return f"{row['profile']} at {row['percent']:g} %"


def both(rows: Sequence[Row], *planners: str) -> list[Row]:
    """Points where all of them have a plan."""
    return [row for row in rows if all(row[planner] is not None for planner in planners)]


def busy(rows: Sequence[Row]) -> list[Row]:
    """Points below the peak, where something has to leave."""
    return [row for row in rows if row["transfer"] > 0]


def joined(parts: Parts) -> list[Row]:
    """All points, with DYNPROG's makespans under each rule about ties."""
    found = {(row["profile"], row["percent"]): row for row in parts["ties"]}
    return [
        {**row, **{key: found[row["profile"], row["percent"]][key] for key in ("paper", "hash")}}
        for row in parts["points"]
    ]


def of(rows: Sequence[Row], column: str) -> list[Row]:
    """The points of a column of DYNPROG: the hash tables run at a few limits only."""
    limits = {row["percent"] for row in rows if row[column] is not None}
    return [row for row in rows if row["percent"] in limits]


def versus(rows: Sequence[Row], first: str, second: str, margin: float = 0.0) -> Ordering:
    """Whether the first is better at every point."""
    return Ordering(pairs=[(row[first], row[second]) for row in rows], margin=margin)


def worst(rows: Sequence[Row], planner: str) -> str:
    """The point with the largest ratio."""
    return where(max(both(rows, planner), key=lambda row: row[planner] / bound(row)))


def claim_ratio(rows: list[Row], column: str) -> Claim:
    """DYNPROG below 1.2 x LB."""
    own = busy(both(of(rows, column), column))
    found = ratios(own, column).tolist()
    above = [row for row in own if row[column] / bound(row) >= RATIO]
    hopeless = sum(row["fractional"] / bound(row) >= RATIO for row in above)
    return Claim(
        text=f"DYNPROG ({COLUMNS[column]}) stays below 1.2 x LB throughout, 83 % of the highest throughput (6.2)",
        paper="< 1.2",
        setting=SETTINGS[column],
        evidence=(("", Figure(values=found, low=-math.inf, high=RATIO, nothing=1.0, form="{:.3f}")),),
        more=f"worst at {worst(own, column)}" if own else "",
        why=f"On {hopeless} of the {len(above)} points at 1.2 or more, the fractional bound itself is at 1.2 or "
        "more. The model's transfers may pause, ours are whole.",
    )


def claim_vdnn(rows: list[Row], planner: str, name: str) -> Claim:
    """DYNPROG or GREEDY against VDNN."""
    own = busy(of(rows, planner))
    shared = both(own, planner, "vdnn")
    low, high = (
        [row[planner] / row["vdnn"] for row in shared if (row["percent"] <= LITTLE) == little]
        for little in (True, False)
    )
    more = Ordering(pairs=[(float(np.mean(low)), float(np.mean(high)))] if low and high else [])
    return Claim(
        text=f"{name} outperforms VDNN in all cases, most of all with little memory (6.2)",
        paper="all",
        setting=SETTINGS.get(planner, THEIRS),
        evidence=(
            ("", versus(own, planner, "vdnn")),
            (f"its mean share of VDNN's time at {LITTLE:g} % of memory and below against above", more),
        ),
    )


def claim_densenet(rows: list[Row], column: str) -> Claim:
    """DYNPROG near optimal on DenseNets where GREEDY is not."""
    own = busy([row for row in of(rows, column) if row["network"].startswith("densenet")])
    dynprog, greedy = ratios(own, column), ratios(own, "greedy")
    return Claim(
        text=f"DYNPROG ({COLUMNS[column]}) is consistently almost optimal on DenseNets, where GREEDY is not (6.2)",
        paper="almost optimal",
        setting=SETTINGS[column],
        evidence=(
            (
                "over LB",
                Figure(values=dynprog.tolist(), low=-math.inf, high=CLOSE, nothing=1.0, form="{:.3f}"),
            ),
            (
                "GREEDY's mean over LB less 1, and dynprog's",
                Ordering(pairs=[(float(dynprog.mean()) - 1, float(greedy.mean()) - 1)] if len(dynprog) else []),
            ),
        ),
        more=f"mean {dynprog.mean():.3f}, GREEDY's {greedy.mean():.3f}, worst {greedy.max():.3f}"
        if len(dynprog)
        else "",
        why=f"We read almost optimal as at most {CLOSE:g} x LB.",
    )


def claim_greedy(rows: list[Row], column: str) -> Claim:
    """DYNPROG significantly better than GREEDY, by little outside DenseNets."""
    dense, other = (
        busy([row for row in of(rows, column) if row["network"].startswith("densenet") == dense])
        for dense in (True, False)
    )
    return Claim(
        text=f"DYNPROG ({COLUMNS[column]}) is significantly better than GREEDY, by little on the other networks (6.2)",
        paper="better",
        setting=SETTINGS[column],
        evidence=(
            ("DenseNets", versus(both(dense, column, "greedy"), column, "greedy", margin=MUCH)),
            ("others", versus(both(other, column, "greedy"), column, "greedy")),
        ),
        why="Points where both have a plan. Several sets are best in the model; which one a dynamic program returns "
        "depends on the order of its states, which the paper does not give.",
    )


def crossing(rows: list[Row]) -> float | None:
    """Percent at which the two terms of LB meet, by linear interpolation; None where they do not."""
    for before, after in pairwise(rows):
        left, right = (row["transfer"] - row["compute"] for row in (before, after))
        if left >= 0 > right:
            return float(before["percent"] + left / (left - right) * (after["percent"] - before["percent"]))
    return None


def claim_spike(rows: list[Row], planner: str) -> Claim:
    """The worst point is where both terms of LB meet."""
    of_profile: dict[str, list[Row]] = {}
    for row in rows:
        of_profile.setdefault(row["profile"], []).append(row)
    distances = []
    for own in of_profile.values():
        at, planned = crossing(own), both(own, planner)
        if at is not None and planned:
            top = max(planned, key=lambda row: row[planner] / bound(row))
            distances.append(abs(top["percent"] - at))
    median = f"median distance {np.median(distances):.0f} points; " if distances else ""
    return Claim(
        text=f"{planner.upper()} spikes where both terms of LB are almost equal (6.2)",
        paper="spikes",
        evidence=(
            ("", Cases(holds=[distance <= MEET for distance in distances], what=f"worst within {MEET:g} points of it")),
        ),
        more=f"{median}the terms do not meet between 0 % and 100 % on {len(of_profile) - len(distances)} profiles",
        why="One case per profile.",
    )


def claim_autoswap(rows: list[Row]) -> Claim:
    """AUTOSWAP often equals GREEDY, inconsistently."""
    own = busy(both(rows, "autoswap", "greedy"))
    same = [abs(row["autoswap"] / row["greedy"] - 1) < SAME for row in own]
    return Claim(
        text="AUTOSWAP often produces GREEDY's solution, and is inconsistent (6.2)",
        paper="often",
        setting=AUTOSWAP,
        evidence=(("the same makespan", Cases(holds=same, share=OFTEN)),),
        more=f"not worse than GREEDY: {versus(own, 'autoswap', 'greedy').text()}",
        why=f"Mean over LB {ratios(own, 'autoswap').mean():.3f}, GREEDY's {ratios(own, 'greedy').mean():.3f}."
        if own
        else "",
    )


def claim_tflms(rows: list[Row]) -> Claim:
    """TFLMS optimal where it runs, without a plan with little memory."""
    own = busy(both(rows, "tflms"))
    little = [row["tflms"] is not None for row in rows if row["percent"] <= LITTLE]
    good = [row["tflms"] <= max(bound(row), row["fractional"]) * 1.001 for row in own]
    return Claim(
        text="TFLMS is optimal at the highest limits and cannot run with little memory (6.2)",
        paper="optimal; no plan",
        evidence=(
            ("below the peak, within 0.1 % of the lower bound", Cases(holds=good)),
            (f"at {LITTLE:g} % of memory and below", Runs(expected=[False] * len(little), found=little)),
        ),
        why="The highest limits are those at which it has a plan.",
    )


def claim_wide(rows: list[Row]) -> Claim:
    """DYNPROG has plans over the widest range."""
    starts: list[tuple[float | None, float | None]] = []
    for profile in dict.fromkeys(row["profile"] for row in rows):
        first: list[float | None] = []
        for planner in ("dynprog", "tflms"):
            able = [row["percent"] for row in rows if row["profile"] == profile and row[planner] is not None]
            first.append(min(able, default=None))
        starts.append((first[0], first[1]))
    medians = [float(np.median([100.0 if pair[k] is None else pair[k] for pair in starts])) for k in (0, 1)]
    return Claim(
        text="DYNPROG finds solutions over a much wider range than TFLMS (6.2)",
        paper="wider",
        evidence=(("least memory with a plan, one case a profile", Ordering(pairs=starts, share=ALWAYS, margin=MUCH)),),
        more=f"medians {medians[0]:g} % and {medians[1]:g} % of the range",
        why="0 % is the least memory of any plan on the graph. There, what a stage saves besides its output may be "
        "offloaded on its own. The paper's model moves both together and needs a little more.",
    )


def claims(parts: Parts) -> list[Claim]:
    """All rows, in the order of the paper."""
    rows = joined(parts)
    return [
        *(claim_ratio(rows, column) for column in COLUMNS),
        claim_vdnn(rows, "hash", 'DYNPROG (method="hash")'),
        claim_vdnn(rows, "paper", 'DYNPROG (ties="paper")'),
        claim_vdnn(rows, "greedy", "GREEDY"),
        *(claim_densenet(rows, column) for column in COLUMNS),
        *(claim_greedy(rows, column) for column in COLUMNS),
        claim_spike(rows, "greedy"),
        claim_spike(rows, "vdnn"),
        claim_autoswap(rows),
        claim_tflms(rows),
        claim_wide(rows),
    ]


def ties_sections(rows: list[Row]) -> list[str]:
    """How often DYNPROG's model cannot tell its set from GREEDY's, and what each rule makes of it."""
    own = busy(both(rows, "dynprog"))
    tied = [
        row["greedy_estimate"] is not None and row["greedy_estimate"] <= row["dynprog_estimate"] * (1 + SAME)
        for row in own
    ]
    cells = []
    for column, name in COLUMNS.items():
        shared = both(own, column, "greedy")
        quotients = np.array([row[column] / row["greedy"] for row in shared])
        if not len(quotients):
            continue
        low, high = quotients.argmin(), quotients.argmax()
        cells.append(
            [
                name,
                len(shared),
                f"{100 * float(np.mean(quotients <= 1 + SAME)):.1f} %",
                f"{quotients.mean():.3f}",
                f"{quotients[low]:.3f} ({where(shared[low])})",
                f"{quotients[high]:.3f} ({where(shared[high])})",
                f"{ratios(shared, column).mean():.3f}",
            ]
        )
    hashed = ", ".join(f"{limit:g}" for limit in sorted({row["percent"] for row in both(rows, "hash")}))
    return [
        "## Ties",
        f"On {100 * float(np.mean(tied)):.1f} % of {len(own)} points below the peak, the interruptible model values "
        "GREEDY's set no less than dynprog's (for which it rounds to slots). Then the model does not say which set "
        "to take, and a dynamic program returns the one that its order of states reaches first; the paper does not "
        'give that order. With whole transfers the choice matters. `method="hash"` is the paper\'s Algorithm 1 and '
        'returns the set that its tables hold. `ties="paper"` uses dominance and bounds; of sets with the same final '
        'state it keeps the one that moves less. `ties="simulate"`, the default, takes GREEDY\'s set if the model '
        "values it no less and its simulated makespan is shorter, so there it beats GREEDY by construction.",
        table(
            ["dynprog", "points", "at most GREEDY's", "mean of GREEDY's", "least", "most", "mean over LB"],
            cells,
        ),
        f'The hash tables run at {hashed} % of memory only. offload starts from the set of `ties="paper"` and '
        "searches on the simulated makespan itself.",
    ]


def summary(rows: list[Row]) -> str:
    """Mean and worst ratios by family."""
    cells = []
    for family in (*FAMILIES, ""):
        own = [row for row in rows if row["network"].startswith(family)]
        if not own:
            continue
        line = [family or "all"]
        for planner in (*SHOWN, "fractional"):
            found = ratios(own, planner)
            line.append(f"{found.mean():.3f} / {found.max():.3f}" if found.size else "-")
        cells.append(line)
    return table(["mean / worst makespan over LB", *SHOWN, "fractional bound"], cells)


def report(parts: Parts, drawn: list[tuple[str, str, str]], environment: Row) -> str:
    """Claims, the table of ratios, all pictures."""
    rows = joined(parts)
    profiles = len({row["profile"] for row in rows})
    limits = len({row["percent"] for row in rows})
    sections = [
        "# Euro-Par 2020, Figures 5 to 19",
        "Beaumont, Eyraud-Dubois, Shilova: Optimal GPU-CPU Offloading Strategies for Deep Neural Network Training. "
        f"Written by `python -m bench.papers.europar2020` from {profiles} chains and {limits} memory limits. 0 % "
        "is the least memory of any plan, 100 % the peak of the plain run; resident bytes do not count. All "
        "makespans are simulated, with whole transfers. dynprog uses 500 slots, offload searches for "
        f"{environment['time_limit']:g} s. LB is the bound of Proposition 3: the compute time, or the time to "
        "offload and prefetch the bytes above the limit if that is longer. points.json beside the pictures has every "
        "number.",
        environment_line(environment)
        + " Makespans do not depend on the machine, except for offload, whose search has a time limit.",
        "What differs from the paper: sizes are those of today's torchvision. Times come from a roofline model of "
        "the same GPU (V100, 12.2 GB/s link), not from measurements (docs/profiles.md). The chains are captured as "
        "`memsched profile` does it. Batches are powers of two, as in the paper, whose text does not say which. Our "
        "graph has separate tensors for a stage's output and "
        "for the rest of what it saves, so some plans are better than the paper's model allows. The only figures in "
        "the paper's text are a ratio below 1.2 throughout, and 83 % of the best throughput, which is the same.",
        *claims_section(claims(parts)),
        *ties_sections(rows),
        "## Ratios",
        summary(rows),
        'Here and in the pictures, dynprog is the default, `ties="simulate"`. The mean of a planner is over the '
        "points where it has a plan. The fractional bound is at least LB and holds for every plan without "
        "recomputation, so no such plan gets closer to LB than this bound.",
        "## Pictures",
    ]
    for file, title, figures in drawn:
        sections.append(f"### {title} (Figure {figures})\n\n![{title}](europar2020/{file})")
    return "\n\n".join(sections) + "\n"
