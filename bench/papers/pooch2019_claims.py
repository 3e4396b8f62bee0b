"""The claims of PoocH's authors against our figures, one row each."""

from __future__ import annotations

import math
from itertools import pairwise

from bench.common import Row
from bench.goals_report import percent
from bench.papers.page import Parts
from bench.papers.pooch2019_classes import claim_classes, claim_crossed
from bench.papers.pooch2019_figures import MEMORY, size_name
from bench.papers.pooch2019_rows import X86, losses, of, pairs, ratios, span, where
from bench.papers.verdict import THEIRS, Cases, Claim, Figure, Ordering, Runs, Setting

LITTLE = 1.05  # our reading of "close" and "little"
RARELY = 10.0  # percent, our reading of "rarely"
MOST_SUBSETS = 25  # maps of which all subsets can be searched
SEARCHES = ("tree 0", "tree 10", "beam 1", "beam 16")
WIDE = 0.01  # how far these may change a time, for a beam to stand for all subsets
LOSSES = Setting(
    hardware="its losses include costs of the runtime (synchronisation, allocation, holes in the pool), which our "
    "profile leaves out"
)
NO_BATCH = "the text does not give the batch of this figure"


def search(parts: Parts) -> Setting:
    """PoocH's search: our beam stands for it where neither its width nor the tree's depth changes a time."""
    changes = [abs(row[name] / row["default"] - 1) for row in parts["searches"] for name in SEARCHES]
    if changes and max(changes) <= WIDE:
        return THEIRS
    return Setting(algorithm="a beam of 4 instead of all subsets of L_I, whose width changes the times")


def claim_memory(rows: list[Row]) -> Claim:
    """Figure 3."""
    every = {row["batch"]: row for row in of(rows, "resnet50", out_of_core=False)}
    own = of(rows, "resnet50")
    top = [row["memory"] / 1e9 for batch, row in every.items() if batch == 640]
    return Claim(
        text="ResNet-50 fails in-core from batch 256 on, needs more than 50 GB at 640, and PoocH runs it (2.2, 5.2)",
        paper="256, > 50 GB",
        evidence=(
            (
                "in-core by batch",
                Runs(
                    expected=[batch < 256 for batch in every],
                    found=[row["in-core"] is not None for row in every.values()],
                ),
            ),
            ("GB at 640", Figure(values=top, low=50, high=math.inf, form="{:.1f}")),
            ("PoocH", Runs(expected=[True] * len(own), found=[row["PoocH"] is not None for row in own])),
        ),
        why="Peaks of the plain run, freed after the last use.",
    )


def claim_scheduled(rows: list[Row]) -> Claim:
    own = [*of(rows, "resnet50"), *of(rows, "alexnet")]
    found = [100 * (value - 1) for value in ratios(own, "swap-all", "w/o scheduling")]
    x86 = [row for row in own if row["link"] < X86]
    return Claim(
        text="Scheduling makes swap-all 2 to 14 % faster (5.1)",
        paper="2 to 14 %",
        evidence=(("percent", Figure(values=found, low=2, high=14, form="{:.1f}")),),
        more=f"{span([100 * (one - 1) for one in ratios(x86, 'swap-all', 'w/o scheduling')], '{:.1f}')} % on x86",
        why="ResNet-50 and AlexNet, all sizes that do not fit, on both machines.",
    )


def claim_opt(rows: list[Row]) -> Claim:
    found = {name: ratios(of(rows, name, x86=True), "swap-opt", "swap-all") for name in ("resnet50", "alexnet")}
    return Claim(
        text="Keeping some maps (swap-opt) is 1.4 to 3.0 times faster than swap-all, on x86 (5.1)",
        paper="1.4 to 3.0",
        evidence=(("", Figure(values=[*found["resnet50"], *found["alexnet"]], low=1.4, high=3.0, nothing=1)),),
        more=f"ResNet-50 {span(found['resnet50'])}, AlexNet {span(found['alexnet'])}",
        why="The gain shrinks as the batch grows, since fewer maps can stay. In our profile AlexNet's swap-all is "
        "close to the bound.",
    )


def claim_fastest(rows: list[Row], setting: Setting) -> Claim:
    own = [*of(rows, "resnet50"), *of(rows, "alexnet")]
    others = ("w/o scheduling", "swap-all", "swap-opt")
    best = [min((row[name] for name in others if row[name] is not None), default=None) for row in own]
    return Claim(
        text="PoocH is the fastest of the four (5.1)",
        paper="fastest",
        setting=setting,
        evidence=(("", Ordering(pairs=[(row["PoocH"], other) for row, other in zip(own, best, strict=True)])),),
        why="Against the best of the other three; PoocH starts from swap-opt's classes.",
    )


def claim_recompute(rows: list[Row]) -> Claim:
    found = ratios(of(rows, "resnet50", x86=True), "PoocH", "swap-opt")
    return Claim(
        text="PoocH is 1.45 times faster than swap-opt on ResNet-50, x86 (5.1)",
        paper="1.45",
        setting=Setting(network=NO_BATCH),
        evidence=(("", Figure(values=found, low=1.45, high=1.45, nothing=1)),),
        why="It grows with the batch.",
    )


def claim_rare(rows: list[Row]) -> Claim:
    own = of(rows, "alexnet")
    again = [100 * row["PoocH classes"][2] / row["maps"] for row in own if row["PoocH classes"]]
    return Claim(
        text="AlexNet's maps are rarely recomputed, and PoocH is close to swap-opt (5.1)",
        paper="rarely, close",
        evidence=(
            ("percent of the maps", Figure(values=again, low=-math.inf, high=RARELY, form="{:.1f}")),
            (
                "times faster than swap-opt",
                Figure(values=ratios(own, "PoocH", "swap-opt"), low=-math.inf, high=LITTLE, form="{:.3f}"),
            ),
        ),
        why=f"We read rarely as at most {RARELY:g} %, close as {LITTLE:g} times. Convolutions take long enough to hide "
        "the transfers.",
    )


def claim_power9(rows: list[Row], setting: Setting) -> Claim:
    own = [*of(rows, "resnet50", x86=False), *of(rows, "alexnet", x86=False)]
    return Claim(
        text="On POWER9 PoocH gains little over swap-opt (5.1)",
        paper="small difference",
        setting=setting,
        evidence=(("", Figure(values=ratios(own, "PoocH", "swap-opt"), low=-math.inf, high=LITTLE, form="{:.3f}")),),
        why=f"We read little as {LITTLE:g} times. Fast links hide nearly all transfers.",
    )


def claim_loss(rows: list[Row], *, x86: bool, low: float, high: float) -> Claim:
    """The degradations of ResNet-50."""
    own = of(rows, "resnet50", x86=x86)
    by_link = {
        link: losses([row for row in own if row["link"] == link]) for link in sorted({row["link"] for row in own})
    }
    return Claim(
        text=f"PoocH loses {low:g} to {high:g} % against in-core, ResNet-50, {'x86' if x86 else 'POWER9'} (5.2)",
        paper=f"{low:g} to {high:g} %",
        setting=LOSSES,
        evidence=(("percent", Figure(values=losses(own), low=low, high=high, form="{:.1f}")),),
        more=", ".join(f"{span(values, '{:.1f}')} at {link / 1e9:g} GB/s" for link, values in by_link.items()),
        why="In-core stands for the "
        f"compute bound of the same batch, {span([r['batch'] / r['bound'] for r in own], '{:.0f}')} images per second; "
        "the paper measured 316.",
    )


def claim_falls(rows: list[Row], name: str, setting: Setting) -> Claim:
    """Speeds fall with the batch: a case is a step from one batch to the next."""
    steps: list[tuple[float | None, float | None]] = []
    for link in sorted({row["link"] for row in rows if row["link"] < X86}):
        own = [r[name] / r["batch"] for r in of(rows, "resnet50", x86=True) if r["link"] == link and r[name]]
        steps += pairwise(own)
    return Claim(
        text=f"{name} gets slower as the batch grows, x86 (5.2)",
        paper="slower",
        setting=setting,
        evidence=(("seconds an image, smaller batch against the next", Ordering(pairs=steps)),),
        why="Fewer maps can stay. PoocH's search is greedy: it may find better classes for the larger batch.",
    )


def claim_rival(rows: list[Row], setting: Setting) -> Claim:
    own = [row for row in of(rows, "resnet50", x86=True) if 256 <= row["batch"] <= 512]
    other = ratios([row for row in of(rows, "resnet50", x86=False) if row["batch"] <= 512], "PoocH", "SuperNeurons")
    return Claim(
        text="PoocH is 1.40 to 1.73 times faster than SuperNeurons, ResNet-50, batch 256 to 512, x86 (5.2)",
        paper="1.40 to 1.73",
        setting=setting,
        evidence=(("", Figure(values=ratios(own, "PoocH", "SuperNeurons"), low=1.4, high=1.73, nothing=1)),),
        why=f"It grows with the batch, as in Figure 17. On POWER9 it is {span(other)}.",
    )


def claim_fails(rows: list[Row]) -> Claim:
    """Of SuperNeurons the paper gives speeds up to 512, and 640 as out of memory."""
    own = [row for row in of(rows, "resnet50") if row["batch"] <= 512 or row["batch"] == 640]
    needs = sorted({(row["batch"], row["SuperNeurons needs"]) for row in of(rows, "resnet50") if lacks(row)})
    told = ", ".join(f"{need / 1e9:.1f} GB at {batch}" for batch, need in needs)
    return Claim(
        text="SuperNeurons runs up to batch 512 and fails at 640, PoocH does not (5.2)",
        paper="fails at 640",
        evidence=(
            (
                "SuperNeurons",
                Runs(
                    expected=[row["batch"] != 640 for row in own],
                    found=[row["SuperNeurons"] is not None for row in own],
                ),
            ),
            ("PoocH", Runs(expected=[True] * len(own), found=[row["PoocH"] is not None for row in own])),
        ),
        why=f"It fetches one convolution ahead whether or not there is memory. With more memory it would run: {told}."
        if told
        else "",
    )


def lacks(row: Row) -> bool:
    return row["SuperNeurons"] is None and row.get("SuperNeurons needs") is not None


def claim_alexnet(rows: list[Row]) -> Claim:
    own = of(rows, "alexnet")
    return Claim(
        text="AlexNet: PoocH loses less than 6.1 %, and SuperNeurons is close (5.2)",
        paper="< 6.1 %",
        setting=LOSSES,
        evidence=(
            ("percent", Figure(values=losses(own), low=-math.inf, high=6.1, form="{:.1f}")),
            (
                "times faster than SuperNeurons",
                Figure(values=ratios(own, "PoocH", "SuperNeurons"), low=1 / LITTLE, high=LITTLE, form="{:.3f}"),
            ),
        ),
        why=f"We read close as {LITTLE:g} times. By formula all transfers hide behind convolutions.",
    )


def claim_clips(rows: list[Row], slower: list[Row], setting: Setting) -> list[Claim]:
    """Figures 4, 21 and 22."""
    every, own = of(rows, "resnext101_3d", out_of_core=False), of(rows, "resnext101_3d")
    needs = sorted({row["memory"] / 1e9 for row in every})
    able = [row for row in own if row["PoocH"] is not None]
    unable = {size_name(row): row["PoocH needs"] for row in own if row["PoocH"] is None}
    factors = sorted({row["slower"] for row in slower})
    by_factor = {k: losses([row for row in slower if row["slower"] == k]) for k in factors}
    each = ", ".join(f"{k:g} times slower {max(values):.1f} %" for k, values in by_factor.items() if k > 1 and values)
    memory_why = ""
    if unable:
        told = ", ".join(f"{name} ({need / 1e9:.1f} GB)" for name, need in unable.items())
        memory_why = f"Not even swap-all fits for {told}"
        alone = all(row["largest op"] > MEMORY for row in own if row["PoocH"] is None)
        memory_why += ": its largest op alone needs more than there is." if alone else "."
    worst = max(able, key=lambda row: row["PoocH"] / row["bound"], default=None)
    return [
        Claim(
            text="ResNeXt-101 (3D) needs up to 58 GB for one clip, and PoocH runs it (2.2, 5.2)",
            paper="58 GB",
            setting=Setting(network="the text does not give the sizes of the clips, and ours lead up to its memory"),
            evidence=(
                ("GB at most", Figure(values=needs[-1:], low=58, high=58, form="{:.1f}")),
                ("PoocH", Runs(expected=[True] * len(own), found=[row["PoocH"] is not None for row in own])),
            ),
            why=memory_why,
        ),
        Claim(
            text="ResNeXt-101 (3D): PoocH loses less than 10 % on both machines (5.2)",
            paper="< 10 %",
            setting=LOSSES,
            evidence=(("percent", Figure(values=losses(able), low=-math.inf, high=10, form="{:.1f}")),),
            more=f"most with {where(worst)}" if worst else "",
            why="Our grouped convolutions may be too fast to hide the transfers: the most that is lost with them "
            f"{each}, at 75 % of the nominal links.",
        ),
        Claim(
            text="ResNeXt-101 (3D): PoocH is faster than SuperNeurons (5.2)",
            paper="faster",
            setting=setting,
            evidence=(("", Ordering(pairs=pairs(own, "PoocH", "SuperNeurons"))),),
            why="Clips that do not fit in-core.",
        ),
    ]


def claim_search(searches: list[Row], growth: list[Row]) -> list[Claim]:
    """Sections 4.4.2 and 5.2 on the search itself."""
    slow, fast = ([row for row in searches if (row["link"] < X86) == x] for x in (True, False))
    deep = [row["late"] for row in (*slow, *fast) if row["network"] != "alexnet" and row["late"] is not None]
    last = max(growth, key=lambda row: row["maps"])
    each = [
        f"{span([row['late'] for row in own if row['network'] != 'alexnet'], '{:g}')} on {name}"
        for own, name in ((slow, "x86"), (fast, "POWER9"))
    ]
    return [
        Claim(
            text="Searching all subsets of L_I, maps whose fetch is waited for, is feasible for ResNet and ResNeXt "
            "(4.4.2)",
            paper="feasible",
            evidence=(
                ("", Cases(holds=[n <= MOST_SUBSETS for n in deep], what=f"at most {MOST_SUBSETS} maps in L_I:")),
            ),
            more=", ".join(each),
            why="Counted on the timeline of swap-all with prefetches as early as memory allows. There a slow link lags "
            "behind all the time, so most prefetches are waited for. We search with a beam instead.",
        ),
        Claim(
            text="Planning takes about 2 minutes for ResNeXt-101 of more than 300 layers (5.2)",
            paper="120 s",
            setting=Setting(
                algorithm="a beam instead of all subsets of L_I, without the profiling run",
                hardware="seconds of another processor",
            ),
            evidence=(("s", Figure(values=[last["planning"]], low=120, high=120)),),
            more=f"{last['network']} {size_name(last)}: {last['maps']} maps, {last['plans']} plans",
        ),
    ]


def claims(parts: Parts) -> list[Claim]:
    """All rows, in the order of the paper."""
    rows, beam = parts["speeds"], search(parts)
    return [
        claim_memory(rows),
        *claim_search(parts["searches"], parts["growth"]),
        claim_scheduled(rows),
        claim_opt(rows),
        claim_fastest(rows, beam),
        claim_recompute(rows),
        claim_rare(rows),
        claim_power9(rows, beam),
        claim_loss(rows, x86=True, low=13, high=38),
        claim_loss(rows, x86=False, low=2, high=28),
        claim_falls(rows, "PoocH", beam),
        claim_falls(rows, "SuperNeurons", THEIRS),
        claim_rival(rows, beam),
        claim_fails(rows),
        *claim_classes(rows),
        *claim_crossed(parts["crossed"], beam),
        claim_alexnet(rows),
        *claim_clips(rows, [row for row in parts["slower"] if row["in-core"] is None], beam),
    ]


def slower_links(rows: list[Row]) -> list[str]:
    """Where a faster link made PoocH's plan slower."""
    found = []
    key = sorted(of(rows, "resnet50") + of(rows, "resnext101_3d"), key=lambda row: row["link"])
    for row in key:
        less = [one for one in key if one["size"] == row["size"] and one["link"] < row["link"] and one["PoocH"]]
        best = min((one["PoocH"] for one in less), default=math.inf)
        if row["PoocH"] and row["PoocH"] > best * 1.001:
            found.append(f"{row['network']} {where(row)} ({percent(row['PoocH'] / best - 1, 1)} slower)")
    return found
