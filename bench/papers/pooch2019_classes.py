"""The claims of PoocH's authors about classes: Table 3, and the classes of the other machine."""

from __future__ import annotations

from bench.common import Row
from bench.papers.pooch2019_rows import X86, of
from bench.papers.verdict import THEIRS, Cases, Claim, Figure, Ordering, Runs, Setting

BEAM = "a beam of 4 instead of all subsets of L_I, and many classes are as fast"


def claim_classes(rows: list[Row]) -> list[Claim]:
    """Table 3."""
    own = sorted((row for row in of(rows, "resnet50") if row["batch"] == 512), key=lambda row: row["link"])
    slow, fast = ([row for row in own if (row["link"] < X86) == x86] for x86 in (True, False))
    rival = {tuple(row["SuperNeurons classes"]) for row in own if row["SuperNeurons classes"]}
    filled = "; ".join(
        f"{row['link'] / 1e9:g}: {'/'.join(map(str, row['PoocH, filled classes']))}"
        for row in own
        if row["PoocH, filled classes"]
    )
    again: list[tuple[float | None, float | None]] = [
        (a["PoocH classes"][2], b["PoocH classes"][2]) for a, b in zip(fast, slow, strict=False)
    ]
    return [
        counts("PoocH's classes on x86", slow, "PoocH", (66, 12, 27), Setting(algorithm=BEAM)),
        counts("PoocH's classes on POWER9", fast, "PoocH", (66, 36, 3), THEIRS, f"With `fill` by GB/s: {filled}."),
        Claim(
            text="PoocH computes more maps again on x86 than on POWER9 (Table 3)",
            paper="27 and 3",
            evidence=(("maps, POWER9 against x86", Ordering(pairs=again)),),
            why="Both links at the nominal speed, and both at 75 % of it.",
        ),
        counts("SuperNeurons' classes on both machines", own, "SuperNeurons", (66, 21, 18), THEIRS),
        Claim(
            text="SuperNeurons decides alike on both machines (Table 3)",
            paper="the same",
            evidence=(("", Cases(holds=[len(rival) == 1] * len(own) if rival else [])),),
        ),
    ]


def counts(
    text: str, rows: list[Row], name: str, paper: tuple[int, int, int], setting: Setting, why: str = ""
) -> Claim:
    """Kept, swapped and recomputed at batch 512."""
    told = "/".join(map(str, paper))
    found = [row[f"{name} classes"] for row in rows if row[f"{name} classes"]]
    labels = ("kept", "swapped", "again")
    return Claim(
        text=f"{text}: {told} maps are kept, swapped and recomputed (Table 3)",
        paper=told,
        setting=setting,
        evidence=tuple(
            (label, Figure(values=[one[k] for one in found], low=paper[k], high=paper[k], form="{:.0f}"))
            for k, label in enumerate(labels)
        ),
        more="by GB/s "
        + "; ".join(f"{row['link'] / 1e9:g}: {'/'.join(map(str, one))}" for row, one in zip(rows, found, strict=False)),
        why="Maps whose transfers hide are swapped at once, so fewer stay. " + why if name == "PoocH" else why,
    )


def claim_crossed(crossed: list[Row], setting: Setting) -> list[Claim]:
    """The classes for POWER9 on x86."""
    top = [row for row in crossed if row["batch"] == 640]
    return [
        Claim(
            text="PoocH's classes for POWER9 are slower on x86 than its own (5.2)",
            paper="slower",
            setting=setting,
            evidence=(("its own against POWER9's", Ordering(pairs=[(row["PoocH"], row["time"]) for row in crossed])),),
            why="They swap what there is no time for.",
        ),
        Claim(
            text="The classes for POWER9 run out of memory on x86 at batch 640 (5.2)",
            paper="fails",
            setting=Setting(
                algorithm="the order of the steps alone decides whether a plan fits, so none that fits on one machine "
                "can fail on another with the same memory, while the paper's system allocates in the order of events"
            ),
            evidence=(
                (
                    "",
                    Runs(expected=[False] * len(top), found=[row["time"] is not None for row in top]),
                ),
            ),
        ),
    ]
