"""One rule for what our figures say about a paper's claim; all pages of papers use it, and nothing else judges.

A claim is judged by evidence (`Figure`, `Ordering`, `Cases`, `Runs`), which holds every measured case, and by the
`Setting` in which we measured. Nobody passes a verdict in: it comes out of `judge`. `RULE` says the rule in words.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

CONFIRMED, CHANGED, REFUTED, NOT_COMPARABLE = "confirmed", "changed", "refuted", "not comparable"
VERDICTS = (CONFIRMED, CHANGED, REFUTED, NOT_COMPARABLE)
HEAD = ("claim (section of the paper)", "paper", "ours", "verdict", "why")

TOLERANCE = 0.10  # of a figure of the paper, either way
FACTOR = 2.0  # what is further off than that is not the paper's figure any more
ALWAYS, OFTEN = 1.0, 0.5  # the share of cases that a claim's words ask for
MUCH = 0.05  # "significantly" better
SAME = 1e-5  # the stored points have six digits
FEWEST = 3  # cases, for a mean or a median to be one

RULE = f"""\
One rule judges the claims of all papers (bench/papers/verdict.py). No verdict is written by hand.

* **Setting.** A claim is **not comparable** if our setting is not the paper's: another algorithm; hardware that the \
paper describes too little, or of which our model leaves out what the claim measures; networks or sizes that the paper \
does not give. The reason stands beside the claim. A model of the very GPU and link that the paper names counts as its \
hardware, for bytes and for makespans, and a network of today's packages counts as the paper's. Where the paper does \
not give its links, batches or sizes, a bound, a range or an ordering is judged on all of ours, and a single figure is \
not comparable.
* **Cases.** Otherwise every measured case counts, not only the best one.
* **Figure or range.** Confirmed if every case is within {100 * TOLERANCE:g} % of it. A mean or a median needs at \
least {FEWEST} cases; it is confirmed if it is within {100 * TOLERANCE:g} % and stays so without any one of its cases. \
Changed if most cases (or the mean) are within a factor of {FACTOR:g}, on the same side of no effect. Otherwise refuted.
* **Bound** (below, at least), **ordering**, **outcome** (runs, or runs out of memory). Confirmed if it holds in the \
share of cases that the claim's words ask for: all, or {100 * OFTEN:g} % for "often". Changed if it holds in more than \
half of that share. Otherwise refuted. A bound has no tolerance.
* **In an ordering** a plan beats no plan, and equal cases do not contradict the claim. To be confirmed, the better \
one must be truly better in the median case, by {100 * MUCH:g} % if the paper says "significantly".
* **A claim of several parts** is as good as its worst part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What stands in the place of the paper's algorithm, hardware and networks, in words; empty where it is theirs."""

    algorithm: str = ""
    hardware: str = ""
    network: str = ""

    def differences(self) -> str:
        """All of them as one text."""
        return "; ".join(text for text in (self.algorithm, self.hardware, self.network) if text)


THEIRS = Setting()


def _checked(values: Sequence[float]) -> None:
    if any(math.isnan(value) for value in values):
        raise ValueError("a measured value is not a number, so nothing can be judged by it")


def _by_share(holds: Sequence[bool], share: float) -> str:
    """Of what is true or false in each case."""
    found = sum(holds) / len(holds)
    if found >= share:
        return CONFIRMED
    return CHANGED if found > share / 2 else REFUTED


def _of(holds: Sequence[bool]) -> str:
    return f"holds in {sum(holds)} of {len(holds)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number (low = high), a range or a bound of the paper against all our values.

    Attributes
    ----------
    values : ours, one a case, as large as printed: 12 for "12 %"
    low, high : of the paper; infinite at the open end of a bound
    of : "each" value, or their "mean" or "median"
    nothing : the value that would say that there is no effect: 0 for a share, 1 for a ratio
    form : of a value in text
    """

    values: Sequence[float]
    low: float
    high: float
    of: str = "each"
    nothing: float = 0.0
    form: str = "{:.2f}"

    def __post_init__(self) -> None:
        _checked(self.values)
        if not self.low <= self.high:
            raise ValueError(f"the paper's figure ends at {self.high}, below its begin at {self.low}")
        if self.of not in ("each", "mean", "median"):
            raise ValueError(f"of is {self.of!r}; it must be each, mean or median")

    def _bound(self) -> bool:
        return math.isinf(self.low) or math.isinf(self.high)

    def _statistic(self) -> Callable[[Sequence[float]], float]:
        return statistics.fmean if self.of == "mean" else statistics.median

    def _without_one(self) -> list[float]:
        """The statistic without each of its cases in turn."""
        pick, values = self._statistic(), list(self.values)
        return [pick(values[:k] + values[k + 1 :]) for k in range(len(values))] if len(values) > 1 else []

    def _judged(self) -> list[float]:
        """What has to be in the paper's range."""
        if self.of == "each":
            return list(self.values)
        return [self._statistic()(self.values), *self._without_one()]

    def _inside(self, value: float, factor: float) -> bool:
        """Within the paper's range, made so many times wider at both ends; a bound stays where it is."""
        factor = 1 + SAME if self._bound() else factor
        low = self.low * factor if self.low < 0 else self.low / factor
        high = self.high / factor if self.high < 0 else self.high * factor
        return low <= value <= high

    def _same_side(self, value: float) -> bool:
        """Whether the value shows an effect of the paper's kind."""
        return (self.low <= self.nothing or value > self.nothing) and (
            self.high >= self.nothing or value < self.nothing
        )

    def verdict(self) -> str:
        judged = self._judged()
        inside = [self._inside(value, 1 + TOLERANCE) for value in judged]
        if all(inside):
            return CONFIRMED
        if self._bound():
            return _by_share(inside, ALWAYS) if self.of == "each" else CHANGED if inside[0] else REFUTED
        near = [self._inside(value, FACTOR) and self._same_side(value) for value in judged]
        return CHANGED if sum(near) > len(near) / 2 else REFUTED

    def text(self) -> str:
        told, low, high = self.form.format, min(self.values), max(self.values)
        if len(self.values) == 1:
            return told(low)
        if self.of == "each":
            inside = [self._inside(value, 1 + TOLERANCE) for value in self.values]
            return f"{told(low)} to {told(high)}, median {told(statistics.median(self.values))}; {_of(inside)}"
        rest = self._without_one()
        return (
            f"{self.of} {told(self._statistic()(self.values))} of {len(self.values)} from {told(low)} to {told(high)}, "
            f"without any one {told(min(rest))} to {told(max(rest))}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """One thing is said to need less than another.

    Attributes
    ----------
    pairs : of each case what the better needs and what the other needs, None without a plan; in the same unit
    share : of the cases, that the claim's words ask for
    margin : by which the better has to win in the median case
    """

    pairs: Sequence[tuple[float | None, float | None]]
    share: float = ALWAYS
    margin: float = 0.0

    def __post_init__(self) -> None:
        _checked(self._ratios())

    def _ratios(self) -> list[float]:
        """The other over the better; cases in which neither has a plan are none."""
        return list(self._each())

    def _each(self) -> Iterator[float]:
        for better, other in self.pairs:
            if better is None and other is None:
                continue
            if better is None:
                yield 0.0
            elif other is None:
                yield math.inf
            elif better > 0:
                yield other / better
            else:
                yield math.inf if other > 0 else 1.0 if other == 0 else math.nan

    def verdict(self) -> str:
        ratios = self._ratios()
        found = _by_share([ratio >= 1 - SAME for ratio in ratios], self.share)
        if found == CONFIRMED and not statistics.median(ratios) > (1 + SAME) * (1 + self.margin):
            return CHANGED
        return found

    def text(self) -> str:
        ratios = self._ratios()
        both = [better / other for better, other in self.pairs if better is not None and other]
        lost, won = (sum(pair[k] is None and pair[1 - k] is not None for pair in self.pairs) for k in (0, 1))
        found = _of([ratio >= 1 - SAME for ratio in ratios])
        if both:
            mean = statistics.fmean(both)
            found += f"; mean {mean:.3f} of the other's, from {min(both):.3f} to {max(both):.3f}"
        found += f"; alone without a plan in {lost}" if lost else ""
        return found + (f"; alone with a plan in {won}" if won else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """What is true or false in each case; `what` says what, in the text."""

    holds: Sequence[bool]
    share: float = ALWAYS
    what: str = ""

    def verdict(self) -> str:
        return _by_share(self.holds, self.share)

    def text(self) -> str:
        return f"{self.what} {_of(self.holds)}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """What is said to run, or to run out of memory: of each case what is `expected`, and whether ours has a plan."""

    expected: Sequence[bool]
    found: Sequence[bool]
    share: float = ALWAYS

    def verdict(self) -> str:
        return _by_share([a == b for a, b in zip(self.expected, self.found, strict=True)], self.share)

    def text(self) -> str:
        told = []
        for expected, claimed in ((True, "to run"), (False, "to fail")):
            own = [b == a for a, b in zip(self.expected, self.found, strict=True) if a == expected]
            told += [f"of {len(own)} said {claimed} {sum(own)} do"] if own else []
        return "; ".join(told)


Evidence = Figure | Ordering | Cases | Runs


def _size(evidence: Evidence) -> int:
    """How many cases there are to judge by."""
    if isinstance(evidence, Figure):
        return len(evidence.values) if evidence.of == "each" or len(evidence.values) >= FEWEST else 0
    if isinstance(evidence, Ordering):
        return sum(pair != (None, None) for pair in evidence.pairs)
    return len(evidence.holds if isinstance(evidence, Cases) else evidence.found)


def judge(setting: Setting, *evidence: Evidence) -> str:
    """The verdict: that of the worst part, or not comparable where the setting is another or a part has no case."""
    if setting != THEIRS or not evidence or not all(_size(one) for one in evidence):
        return NOT_COMPARABLE
    return max((one.verdict() for one in evidence), key=VERDICTS.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A row of a page.

    Attributes
    ----------
    text, paper : what the authors say, with the section, and its figure
    evidence : all of ours that it is judged by, with a label each, which may be empty
    setting : what is not the paper's
    more, why : further figures, which judge nothing, and reasons
    """

    text: str
    paper: str
    evidence: tuple[tuple[str, Evidence], ...]
    setting: Setting = THEIRS
    more: str = ""
    why: str = ""

    def verdict(self) -> str:
        return judge(self.setting, *(one for _, one in self.evidence))

    def row(self) -> list[str]:
        """The cells below `HEAD`."""
        told = [f"{label}: {one.text()}" if label else one.text() for label, one in self.evidence if _size(one)]
        ours = "; ".join([*(told or ["not measured"]), *([self.more] if self.more else [])])
        found = self.setting.differences()
        why = f"Not the paper's: {found}. {self.why}".strip() if found else self.why
        return [self.text, self.paper, ours, self.verdict(), why]
