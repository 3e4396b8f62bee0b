"""The Markdown of docs/results/europar2020.md: the paper's claims against our figures."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
from bench.common import Row, environment_line, table

SAME = 1 + 1e-9
NEAR = 1.01
FAMILIES = ("resnet", "densenet", "inception")
SHOWN = ("dynprog", "greedy", "vdnn", "autoswap", "tflms", "offload")

Numbers = npt.NDArray[np.float64]


def bound(row: Row) -> float:
    """LB of Proposition 3."""
    return float(max(row["compute"], row["transfer"]))


def ratios(rows: list[Row], planner: str) -> Numbers:
    """Makespan over LB where the planner has a plan."""
    return np.array([row[planner] / bound(row) for row in rows if row[planner] is not None])


def where(row: Row) -> str:
    """One point."""
    return f"{row['profile']} at {row['percent']:g} %"


def worst(rows: list[Row], planner: str) -> tuple[float, str]:
    """Largest ratio and its point."""
    own = [row for row in rows if row[planner] is not None]
    top = max(own, key=lambda row: row[planner] / bound(row))
    return top[planner] / bound(top), where(top)


def share(flags: list[bool]) -> str:
    """Of true ones, as text."""
    return f"{100 * float(np.mean(flags)):.1f} % of {len(flags)}" if flags else "none"


def both(rows: list[Row], *planners: str) -> list[Row]:
    """Points where all of them have a plan."""
    return [row for row in rows if all(row[planner] is not None for planner in planners)]


def compared(rows: list[Row], first: str, second: str) -> tuple[list[bool], str, str]:
    """Where the first is at least as good as the second; means of the quotient; the worst point."""
    own = both(rows, first, second)
    flags = [row[first] <= row[second] * SAME for row in own]
    top = max(own, key=lambda row: row[first] / row[second])
    mean = float(np.mean([row[first] / row[second] for row in own]))
    return flags, f"{mean:.3f}", f"{top[first] / top[second]:.3f} ({where(top)})"


def tied(rows: list[Row]) -> list[Row]:
    """Where GREEDY's set is worth as much as DYNPROG's in DYNPROG's own model."""
    return [
        row
        for row in both(rows, "dynprog", "greedy_estimate")
        if row["transfer"] > 0 and row["greedy_estimate"] <= row["dynprog_estimate"] * SAME
    ]


def claim_ratio(rows: list[Row]) -> list[str]:
    """DYNPROG below 1.2 x LB."""
    own = [row for row in both(rows, "dynprog") if row["transfer"] > 0]
    found = ratios(own, "dynprog")
    top, at = worst(own, "dynprog")
    above = [row for row in own if row["dynprog"] / bound(row) >= 1.2]
    hopeless = [row for row in above if row["fractional"] / bound(row) >= 1.2]
    model = np.array([row["dynprog_estimate"] / max(bound(row), row["fractional"]) for row in own])
    text = (
        f"Mean {found.mean():.3f}, worst {top:.3f} ({at}), below 1.2 on {share((found < 1.2).tolist())} points. Of "
        f"the {len(above)} others the fractional bound itself is at 1.2 or more on {len(hopeless)}. In the "
        f"interruptible model its sets are {100 * (model.mean() - 1):.1f} % above the fractional bound on average "
        f"and {100 * (model.max() - 1):.1f} % at worst: the rest is lost when activations travel whole. offload: "
        f"mean {ratios(own, 'offload').mean():.3f}, worst {worst(own, 'offload')[0]:.3f} "
        f"({worst(own, 'offload')[1]})."
    )
    verdict = "confirmed" if top < 1.2 else "refuted"
    return ["DYNPROG stays below 1.2 x LB throughout, 83 % of the highest throughput (6.2)", verdict, text]


def ties(rows: list[Row]) -> str:
    """How often DYNPROG's model cannot tell its set from GREEDY's."""
    own = [row for row in both(rows, "dynprog") if row["transfer"] > 0]
    same = tied(own)
    if not same:
        return ""
    names = {(row["profile"], row["percent"]) for row in same}
    return (
        f"On {share([(row['profile'], row['percent']) in names for row in own])} points below the peak GREEDY's set "
        "is worth no less than dynprog's in the interruptible model (in which dynprog's rounds to slots), so the "
        "model does not say which to take; which one a dynamic program returns depends on its order of states, which "
        "the paper does not give. With whole transfers the choice matters. Our dynprog takes the set that moves less, "
        "and GREEDY's where the simulator prefers it. offload goes on from there and searches on the simulated "
        "makespan itself."
    )


def claim_vdnn(rows: list[Row]) -> list[str]:
    """DYNPROG and GREEDY beat VDNN."""
    parts, all_flags = [], []
    for planner in ("dynprog", "greedy"):
        flags, mean, top = compared(rows, planner, "vdnn")
        low, _, _ = compared([row for row in rows if row["percent"] <= 30] or rows, planner, "vdnn")
        all_flags += flags
        parts.append(
            f"{planner} is at least as good on {share(flags)} points ({share(low)} at 30 % of memory and below); its "
            f"makespan over vdnn's is {mean} on average and {top} at worst."
        )
    mean_flag = float(np.mean(all_flags))
    verdict = "confirmed" if mean_flag == 1 else "changed" if mean_flag >= 0.75 else "refuted"
    return [
        "GREEDY and DYNPROG outperform VDNN in all cases, most of all with little memory (6.2)",
        verdict,
        " ".join(parts),
    ]


def claim_densenet(rows: list[Row]) -> list[str]:
    """DYNPROG near optimal on DenseNets where GREEDY is not."""
    own = [row for row in rows if row["network"].startswith("densenet")]
    if not own:
        return []
    dynprog, greedy = ratios(own, "dynprog"), ratios(own, "greedy")
    text = (
        f"DenseNets only: dynprog mean {dynprog.mean():.3f}, worst {worst(own, 'dynprog')[0]:.3f} "
        f"({worst(own, 'dynprog')[1]}), within 1 % on {share((dynprog <= NEAR).tolist())}; greedy mean "
        f"{greedy.mean():.3f}, worst {worst(own, 'greedy')[0]:.3f} ({worst(own, 'greedy')[1]}), within 1 % on "
        f"{share((greedy <= NEAR).tolist())}."
    )
    better = dynprog.mean() < greedy.mean()
    verdict = "confirmed" if dynprog.max() < 1.02 and better else "changed" if better else "refuted"
    return ["DYNPROG is consistently almost optimal on DenseNets, where GREEDY is not (6.2)", verdict, text]


def claim_greedy_close(rows: list[Row]) -> list[str]:
    """DYNPROG better than GREEDY, by little outside DenseNets."""
    own = [row for row in rows if not row["network"].startswith("densenet")]
    if not own:
        return []
    flags, mean, top = compared(own, "dynprog", "greedy")
    text = (
        f"Outside DenseNets dynprog's makespan over greedy's is {mean} on average and {top} at worst, and dynprog is "
        f"at least as good on {share(flags)} points; on DenseNets {compared_text(rows)}"
    )
    ahead = float(np.mean(flags)) >= 0.9
    verdict = "confirmed" if ahead else "changed" if float(mean) <= 1.0 else "refuted"
    return ["DYNPROG is significantly better than GREEDY, by little on the other networks (6.2)", verdict, text]


def compared_text(rows: list[Row]) -> str:
    """DYNPROG over GREEDY on DenseNets."""
    own = [row for row in rows if row["network"].startswith("densenet")]
    if not own:
        return "not measured."
    flags, mean, top = compared(own, "dynprog", "greedy")
    return f"{mean}, {top}, {share(flags)}."


def crossing(rows: list[Row]) -> float | None:
    """Percent at which the two terms of LB meet, by linear interpolation; None where they do not."""
    for before, after in pairwise(rows):
        left, right = (row["transfer"] - row["compute"] for row in (before, after))
        if left >= 0 > right:
            return float(before["percent"] + left / (left - right) * (after["percent"] - before["percent"]))
    return None


def claim_spike(rows: list[Row]) -> list[str]:
    """GREEDY and VDNN spike where both terms of LB meet."""
    of_profile: dict[str, list[Row]] = {}
    for row in rows:
        of_profile.setdefault(row["profile"], []).append(row)
    crossings = {profile: crossing(own) for profile, own in of_profile.items()}
    meeting = {profile: at for profile, at in crossings.items() if at is not None}
    parts, close = [], []
    for planner in ("greedy", "vdnn"):
        near, far, distance = [], [], []
        for profile, at in meeting.items():
            own = both(of_profile[profile], planner)
            heights = ratios(own, planner)
            apart = np.array([abs(row["percent"] - at) for row in own])
            near += heights[apart <= 7.5].tolist()
            far += heights[apart > 15].tolist()
            distance.append(apart[int(np.argmax(heights))])
        if near and far:
            share_near = float(np.mean(np.array(distance) <= 10))
            close.append(share_near)
            parts.append(
                f"{planner}: mean {np.mean(near):.3f} within 7.5 points of the limit where the terms meet, "
                f"{np.mean(far):.3f} more than 15 points away; its worst point is within 10 points of it on "
                f"{100 * share_near:.0f} % of {len(meeting)} profiles (median distance {np.median(distance):.0f} "
                "points)."
            )
    if not parts:
        return []
    parts.append(f"The terms do not meet between 0 % and 100 % on {len(crossings) - len(meeting)} profiles.")
    verdict = "confirmed" if min(close) >= 0.75 else "changed" if close[0] >= 0.4 else "refuted"
    return ["GREEDY and VDNN spike where both terms of LB are almost equal (6.2)", verdict, " ".join(parts)]


def claim_autoswap(rows: list[Row]) -> list[str]:
    """AUTOSWAP often equals GREEDY, inconsistently."""
    own = both(rows, "autoswap", "greedy")
    busy = [row for row in own if row["transfer"] > 0]
    same = [abs(row["autoswap"] / row["greedy"] - 1) < 1e-6 for row in busy]
    flags, mean, top = compared(busy, "autoswap", "greedy")
    lowest = min(busy, key=lambda row: row["autoswap"] / row["greedy"])
    text = (
        f"The same makespan on {share(same)} points below the peak; at least as good as greedy on {share(flags)}; "
        f"its makespan over greedy's is {mean} on average, from {lowest['autoswap'] / lowest['greedy']:.3f} "
        f"({where(lowest)}) to {top}. Mean ratio to LB {ratios(own, 'autoswap').mean():.3f}, dynprog's "
        f"{ratios(own, 'dynprog').mean():.3f}."
    )
    often = float(np.mean(same))
    verdict = "confirmed" if often >= 0.3 else "changed" if often >= 0.1 else "refuted"
    return ["AUTOSWAP often produces GREEDY's solution, and is inconsistent (6.2)", verdict, text]


def claim_tflms(rows: list[Row]) -> list[str]:
    """TFLMS optimal with much memory, without a plan with little."""
    starts = []
    for profile in dict.fromkeys(row["profile"] for row in rows):
        own = [row for row in rows if row["profile"] == profile and row["tflms"] is not None]
        starts.append(min((row["percent"] for row in own), default=100.0))
    below = [row for row in both(rows, "tflms") if row["transfer"] > 0]
    good = [row["tflms"] <= max(bound(row), row["fractional"]) * 1.001 for row in below]
    text = (
        f"It runs from {np.median(starts):.0f} % of memory on (median over {len(starts)} profiles; between "
        f"{min(starts):.0f} % and {max(starts):.0f} %), at {share([row['tflms'] is not None for row in rows])} "
        f"points in all; of those below the peak it is within 0.1 % of the lower bound on {share(good)}."
    )
    verdict = "confirmed" if good and np.mean(good) >= 0.9 and np.median(starts) > 30 else "changed"
    return ["TFLMS is optimal at the highest limits and cannot run with little memory (6.2)", verdict, text]


def claim_wide(rows: list[Row]) -> list[str]:
    """DYNPROG has plans over the widest range."""
    flags = [row["dynprog"] is not None for row in rows]
    other = [row["tflms"] is not None for row in rows]
    missing = [row for row, found in zip(rows, flags, strict=True) if not found]
    largest = max((row["percent"] for row in missing), default=0.0)
    text = (
        f"dynprog has a plan on {share(flags)} points, tflms on {share(other)}; dynprog's last without one is at "
        f"{largest:g} %. 0 % is the least "
        "memory of any plan on the graph, where what a stage saves besides its output may leave on its own; the "
        "paper's model moves both as one and needs a little more."
    )
    verdict = "confirmed" if sum(flags) >= 1.5 * sum(other) else "refuted"
    return ["DYNPROG finds solutions over a much wider range than TFLMS (6.2)", verdict, text]


def summary(rows: list[Row]) -> str:
    """Mean and worst ratios by family."""
    cells = []
    for family in (*FAMILIES, ""):
        own = [row for row in rows if row["network"].startswith(family)]
        if not own:
            continue
        line = [family or "all"]
        for planner in SHOWN:
            found = ratios(own, planner)
            line.append(f"{found.mean():.3f} / {found.max():.3f}" if found.size else "-")
        fractional = ratios(own, "fractional")
        cells.append([*line, f"{fractional.mean():.3f} / {fractional.max():.3f}"])
    return table(["mean / worst makespan over LB", *SHOWN, "fractional bound"], cells)


def report(rows: list[Row], drawn: list[tuple[str, str, str]], environment: Row, time_limit: float) -> str:
    """Claims, the table of ratios, all pictures."""
    makers = (
        claim_ratio,
        claim_vdnn,
        claim_densenet,
        claim_greedy_close,
        claim_spike,
        claim_autoswap,
        claim_tflms,
        claim_wide,
    )
    claims = [found for make in makers if (found := make(rows))]
    profiles = len({row["profile"] for row in rows})
    limits = len({row["percent"] for row in rows})
    sections = [
        "# Euro-Par 2020, Figures 5 to 19",
        "Beaumont, Eyraud-Dubois, Shilova: Optimal GPU-CPU Offloading Strategies for Deep Neural Network Training. "
        f"Written by `python -m bench.papers.europar2020`: {profiles} profiles, {limits} memory limits from the "
        "least memory of any plan (0 %) to the peak of the plain run (100 %), resident bytes apart. All makespans "
        "are simulated, with activations that travel whole. dynprog uses 500 slots; offload searches for "
        f"{time_limit:g} s. LB is that of Proposition 3, the larger of the compute time and of the time that the "
        "bytes above the limit need to leave and come back. points.csv beside the pictures has every number.",
        environment_line(environment)
        + " Makespans do not depend on the machine, except offload's, whose search has a time limit.",
        "What differs from the paper: sizes are those of today's torchvision, and times come from a roofline model "
        "of the same GPU (V100, 12.2 GB/s link) instead of measurements, see docs/profiles.md. The shipped profiles "
        "have two batch sizes for each image size; the paper's other powers of two follow once the project profiles "
        "by itself. Our graph knows a stage's output and the rest of what it saves apart, so some plans are better "
        "than the paper's model allows. The paper's figures carry no numbers in its text but these: a ratio below "
        "1.2 throughout, which is 83 % of the best throughput.",
        "## Claims",
        table(["claim (section of the paper)", "verdict", "our figures"], claims),
        "## Ties",
        ties(rows),
        "## Ratios",
        summary(rows),
        "Every planner's mean is over the points where it has a plan. The fractional bound is at least LB and holds "
        "for every plan without recomputation: what lies between it and LB nobody can gain.",
        "## Pictures",
    ]
    for file, title, figures in drawn:
        sections.append(f"### {title} (Figure {figures})\n\n![{title}](europar2020/{file})")
    return "\n\n".join(sections) + "\n"
