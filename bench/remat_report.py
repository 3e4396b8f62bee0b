"""The Markdown of docs/results/remat.md, from what bench.remat measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from bench.common import Row, environment_line, table
from bench.goals_report import percent, verdict

ONE, TWO = 4.0, 7.0  # times faster than the published solver, on one thread and on two
GROWN = 250e6  # bytes
EXACT = {100: 1.0, 200: 8.0}  # seconds by stages
REAL = 3.0  # seconds
POINT = 1.0  # of overhead
SAME = 1e-9

Part = tuple[list[list[str]], str]


def overhead(value: float | None) -> str:
    """Above the ideal time, a share, as text."""
    return "no plan" if value is None else percent(value, 1)


def where(row: Row) -> str:
    """One point."""
    return f"{row['chain']}, {row['percent']:g} %"


def seconds(value: float) -> str:
    """As text."""
    return f"{value:.2f} s"


def rotor_part(rows: list[Row]) -> Part:
    """Our table against the published solver."""
    first = rows[0]
    size = f"{first['stages']} stages and {first['slots']} slots"
    one, two = (min(rows, key=lambda row: row[f"{name}_ratio"]) for name in ("one", "two"))
    busiest = min(row["two_busiest_ratio"] for row in rows)
    goals = [
        [
            f"rotor, {size}: at least {ONE:g}x faster than the published solver on one thread (CPU time)",
            f"at least {one['one_ratio']:.1f}x ({where(one)})",
            verdict(one["one_ratio"] >= ONE),
        ],
        [
            f"and at least {TWO:g}x on two threads (wall time)",
            f"at least {two['two_ratio']:.1f}x ({where(two)}); {busiest:.1f}x by the busier thread's CPU time",
            verdict(two["two_ratio"] >= TWO),
        ],
    ]
    cells = [
        [
            where(row),
            seconds(row["published_cpu"]),
            seconds(row["one_cpu"]),
            f"{row['one_ratio']:.1f}",
            seconds(row["published_wall"]),
            seconds(row["two_wall"]),
            f"{row['two_ratio']:.1f}",
            seconds(row["two_busiest"]),
            overhead(row["published_overhead"]),
            overhead(row["overhead"]),
        ]
        for row in rows
    ]
    head = [
        "chain, memory",
        "published, CPU",
        "ours, CPU",
        "ratio",
        "published, wall",
        "ours on two, wall",
        "ratio",
        "busier thread",
        "published, overhead",
        "ours",
    ]
    text = (
        "Ours is `_core.RematTable` as installed: table and plan, in single precision, without stored decisions. The "
        "other is bench/native/rotor.c, a transcription of the published solver to C (double precision, decisions as "
        "long, dense tables), compiled with -O3 -march=native. Its times are those of the tables alone; the "
        "published solver also makes a Python object of each cell, which takes longer and is left out. Best of "
        "several runs, the two taking turns. Memory is in percent of the plain run's peak. The two count memory "
        "differently (see docs/errata.md), so their overheads differ a little. The CPU time of the busier thread is "
        "what wall time would be on an idle machine."
    )
    return goals, "\n\n".join(["## Rotor's table", text, table(head, cells)])


def loaded_part(rows: list[Row]) -> Part:
    """The same beside other work, once each."""
    load = f"{min(row['load'] for row in rows):.0f} to {max(row['load'] for row in rows):.0f}"
    spread = {
        name: f"{min(row[key] for row in rows):.1f}x to {max(row[key] for row in rows):.1f}x"
        for name, key in (("one", "one_ratio"), ("two", "two_ratio"))
    }
    text = (
        f"Other work shares caches, memory and cores. At a load average of {load} on {rows[0]['cores']} cores, with "
        f"each solver called once in turn ({where(rows[0])}), the ratio is {spread['one']} in CPU time on one thread "
        f"and {spread['two']} in wall time on two."
    )
    goals = [
        [
            f"the same on a machine with a load average of {load}: {ONE:g}x on one thread, {TWO:g}x on two",
            f"{spread['one']} on one, {spread['two']} on two",
            verdict(all(row["one_ratio"] >= ONE and row["two_ratio"] >= TWO for row in rows)),
        ]
    ]
    return goals, "\n\n".join(["### Beside other work", text])


def memory_part(rows: list[Row]) -> Part:
    """Peak memory of both."""
    most = max(row["ours"] for row in rows)
    goals = [
        [
            f"and the process grows by at most {GROWN / 1e6:g} MB",
            f"{most / 1e6:.0f} MB; the published solver {max(row['published'] for row in rows) / 1e6:.0f} MB",
            verdict(most <= GROWN),
        ]
    ]
    cells = [[where(row), f"{row['ours'] / 1e6:.0f} MB", f"{row['published'] / 1e6:.0f} MB"] for row in rows]
    text = "Growth of the peak resident memory of a fresh process; ours on two threads."
    return goals, "\n\n".join(["### Memory", text, table(["chain, memory", "ours", "published"], cells)])


def exact_part(rows: list[Row]) -> Part:
    """Seconds of the exact search."""
    goals = []
    for stages in dict.fromkeys(row["stages"] for row in rows):
        own = [row for row in rows if row["stages"] == stages]
        one, two = (max(own, key=lambda row: row[name]) for name in ("one_cpu", "two_wall"))
        limit = EXACT.get(stages)
        goals.append(
            [
                f"pofo, exact labels, {stages} stages x {own[0]['slots']} slots"
                + (f": under {limit:g} s" if limit else ""),
                f"one thread at most {seconds(one['one_cpu'])} of CPU time ({where(one)}), two at most "
                f"{seconds(two['two_wall'])} of wall time, {seconds(max(row['two_busiest'] for row in own))} by the "
                "busier thread's CPU time",
                verdict(limit is None or max(one["one_cpu"], two["two_wall"]) < limit),
            ]
        )
    cells = [
        [
            row["stages"],
            where(row),
            seconds(row["one_cpu"]),
            seconds(row["two_wall"]),
            seconds(row["two_busiest"]),
            "-" if row["states"] is None else f"{row['states']:.3g}",
            overhead(row["overhead"]),
        ]
        for row in rows
    ]
    head = [
        "stages",
        "chain, memory",
        "one thread, CPU",
        "two, wall",
        "two, busier thread",
        "states",
        "overhead in the model",
    ]
    text = (
        "Table and search. The link needs four times as long as the forward phase to move everything that it saves. "
        "Overheads are those in the model, with sizes rounded up to slots."
    )
    return goals, "\n\n".join(["## POFO, exact labels", text, table(head, cells)])


def real_part(rows: list[Row]) -> Part:
    """Real labels against exact ones."""
    first = rows[0]
    slow = max(rows, key=lambda row: row["real_cpu"])
    worse = [row for row in rows if row["real_overhead"] > row["exact_overhead"] + SAME]
    least = min(row["exact_overhead"] - row["real_overhead"] for row in rows)
    goals = [
        [
            f"pofo, real labels, {first['stages']} stages, {first['slots']} slots: under {REAL:g} s",
            f"one thread at most {seconds(slow['real_cpu'])} of CPU time ({where(slow)}), simulation included",
            verdict(slow["real_cpu"] < REAL),
        ],
        [
            "and simulated at least as fast as the exact plan of 50 slots",
            f"on {len(rows) - len(worse)} of {len(rows)}; better by {100 * least:.1f} points of overhead or more"
            if not worse
            else f"on {len(rows) - len(worse)} of {len(rows)}; worse by up to {-100 * least:.1f} points",
            verdict(not worse),
        ],
    ]
    cells = [
        [
            where(row),
            "whole" if row["chunk"] is None else f"pieces of {row['chunk'] >> 20} MiB",
            seconds(row["real_cpu"]),
            overhead(row["real_value"]),
            overhead(row["real_overhead"]),
            seconds(row["exact_cpu"]),
            overhead(row["exact_value"]),
            overhead(row["exact_overhead"]),
            row["exact_slots"],
        ]
        for row in rows
    ]
    head = [
        "chain, memory",
        "transfers",
        "real: CPU",
        "in the model",
        "simulated",
        "exact: CPU",
        "in the model",
        "simulated",
        "slots taken",
    ]
    text = (
        "`ms.pofo` on one thread, with its default beam and the same link. Where 50 slots have no plan, pofo uses more."
    )
    return goals, "\n\n".join(["## POFO, real labels", text, table(head, cells)])


def threads_part(rows: list[Row]) -> Part:
    """Whether threads change a bit."""
    same = [row for row in rows if row["same"]]
    goals = [
        [
            "two threads find what one finds, bit by bit",
            f"on {len(same)} of {len(rows)} points, and five threads too",
            verdict(len(same) == len(rows)),
        ]
    ]
    cells = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        lengths = ", ".join(str(n) for n in sorted({row["stages"] for row in own}))
        cells.append([method, lengths, f"{sum(row['same'] for row in own)} of {len(own)}"])
    text = (
        "Value, runs and offloads are compared on one, two and five threads; for rotor at 20 budgets of one table. "
        "500 slots for rotor, 50 for exact and 400 for real labels."
    )
    return goals, "\n\n".join(["## Threads", text, table(["method", "stages", "the same"], cells)])


def growth_part(rows: list[Row]) -> str:
    """Fitted powers."""
    cells = []
    found = {(row["method"], row["varied"]) for row in rows}
    for method in dict.fromkeys(row["method"] for row in rows):
        for varied in ("stages", "slots"):
            if (method, varied) in found:
                own = [row for row in rows if (row["method"], row["varied"]) == (method, varied) and row["plan"]]
                cells.append(growth_cells(method, varied, own))
    text = (
        "CPU seconds of one thread on random chains (the median of the seeds) at "
        + f"{rows[0]['percent']:g} % of the peak; the searches' "
        "without their table, real labels with a beam of 100 states. The exponent is that of a power law fitted to "
        "all."
    )
    head = ["method", "varied", "kept", "from .. to", "exponent", "seconds"]
    return "\n\n".join(["## Growth of the cost", text, table(head, cells)])


def growth_cells(method: str, varied: str, rows: list[Row]) -> list[str]:
    """One line of the table of powers."""
    numbers = sorted({row[varied] for row in rows})
    if len(numbers) < 2:
        return [method, varied, "", "no plans", "", ""]
    kept = "slots" if varied == "stages" else "stages"
    medians = [float(np.median([row["seconds"] for row in rows if row[varied] == number])) for number in numbers]
    exponent = np.polyfit(np.log(numbers), np.log(medians), 1)[0]
    return [
        {"table": "rotor's table", "exact": "pofo, exact", "real": "pofo, real"}[method],
        varied,
        f"{rows[0][kept]} {kept}",
        ", ".join(map(str, numbers)),
        f"{exponent:.2f}",
        ", ".join(f"{median:.3g}" for median in medians),
    ]


def auto_part(rows: list[Row]) -> Part:
    """`plan` against the study, and what honouring the scratch of transient forwards costs."""
    apart = max(rows, key=lambda row: row["auto"] - row["study_pofo"])
    far = [row for row in rows if row["auto"] > row["study_pofo"] + POINT]
    goals = [
        [
            'plan(planner="auto", chunk=16 MiB) within a point of overhead of the values of an earlier study',
            f"on {len(rows) - len(far)} of {len(rows)}; at most {apart['auto'] - apart['study_pofo']:+.1f} points "
            f"({apart['profile']}, {apart['percent']} %)",
            verdict(not far),
        ]
    ]

    def line(row: Row) -> list[str]:
        names = ("study_rotor", "rotor", "study_pofo", "auto")
        return [
            f"{row['profile']}, {row['percent']} %",
            *(f"{row[name]:.1f}" for name in names),
            f"{row['auto'] - row['study_pofo']:+.1f}",
            row["planner"],
            f"{row['whole']:.1f}",
            f"{row['bound']:.1f}",
            seconds(row["cpu"]),
        ]

    head = [
        "profile, memory",
        "rotor: study",
        "ours",
        "POFO: study",
        "auto",
        "difference",
        "planner",
        "whole transfers",
        "bound",
        "CPU",
    ]
    costs: list[tuple[str, Callable[[Row], float]]] = [
        ("rotor", lambda row: row["rotor"] - row["light_rotor"]),
        ("auto", lambda row: row["auto"] - row["light_auto"]),
    ]
    spread = [
        [name, *(f"{value:+.2f}" for value in three(cost(row) for row in rows)), worst(rows, cost)]
        for name, cost in costs
    ]
    text = (
        "Percent above the ideal time, with memory at 10, 30, 50 and 70 % of the way from the least memory without "
        "recomputation to the peak. The earlier study solved the same recurrence (real sizes, 200 slots, 100 "
        "states); its values are those of the model, in which transfers pause and memory is released continuously. "
        "Ours are simulated with pieces of 16 MiB, and in a column of their own with whole transfers. The bound "
        "holds for every plan, with or without recomputation."
    )
    scratch = (
        "A forward that does not save still needs workspace for what it would have saved: transient_overhead. Its "
        "cost, in points of overhead, relative to the same chains with transient_overhead = forward_overhead:"
    )
    return goals, "\n\n".join(
        [
            "## What plan returns",
            text,
            table(head, map(line, rows)),
            scratch,
            table(["", "least", "mean", "most", "most at"], spread),
        ]
    )


def three(values: Iterable[float]) -> tuple[float, float, float]:
    """Least, mean and largest."""
    own = list(values)
    return min(own), float(np.mean(own)), max(own)


def worst(rows: list[Row], cost: Callable[[Row], float]) -> str:
    """Where it is largest."""
    row = max(rows, key=cost)
    return f"{row['profile']}, {row['percent']} %"


WITH_GOALS = {
    "rotor": rotor_part,
    "loaded": loaded_part,
    "memory": memory_part,
    "exact": exact_part,
    "real": real_part,
    "threads": threads_part,
    "auto": auto_part,
}


def report(document: Row) -> str:
    """All parts that were measured."""
    goals: list[list[str]] = []
    sections = []
    for part, rows in document["parts"].items():
        if part == "growth":
            sections.append(growth_part(rows))
        else:
            found, section = WITH_GOALS[part](rows)
            goals += found
            sections.append(section)
    lines = [
        "# Recomputation: goals of speed and quality",
        "Written by `python -m bench.remat`; remat.json beside it has every point. "
        + environment_line(document["environment"]),
        "`random` is memsched.profiles.random: log-normal times and sizes over two orders of magnitude. The other "
        "chain is a profile with each stage repeated. Ratios compare the best of several calls, taken in turns in "
        "one run on this machine. They are different on another processor, and on a busy one.",
    ]
    if goals:
        lines.append(table(["goal", "measured", ""], goals))
    return "\n\n".join([*lines, *sections]) + "\n"
