"""The class of each feature map in a plan: keep, swap or recompute (PoocH)."""

from __future__ import annotations

from collections import Counter

from memsched import _core
from memsched.result import Result
from memsched.support import checks
from memsched.support.arguments import public

CLASSES = ("keep", "swap", "recompute")


@public
def feature_map_classes(result: Result) -> dict[str, str]:
    """The class of each feature map, an activation with bytes that the forward writes and the backward reads.

    A map that is fetched from the host is "swap". A map that a second run of its op writes is "recompute", also where
    the first did not write it, as that of a stage whose tape is skipped. Any other map is "keep": it stays on the
    device until its last use, or never comes back.

    Parameters
    ----------
    result : Result
        From any planner. For a chain, the maps are those of its graph.

    Returns
    -------
    dict
        Name of the map -> "keep", "swap" or "recompute", in the order in which they are written.

    References
    ----------
    Ito et al., PoocH, 2019, Table 3.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4])
    >>> ms.feature_map_classes(ms.rotor(chain, M=20))
    {'a1': 'recompute', 'a2': 'recompute', 'a3': 'keep'}
    """
    checks.kind("result", result, Result)
    graph = result.graph
    steps = result.schedule.steps
    fetched = {step["prefetch"] for step in steps if "prefetch" in step}
    writes = {op["name"]: op["writes"] for op in graph.ops}
    runs, again = Counter[str](), set[str]()
    for step in steps:
        if "run" in step:
            runs[step["run"]] += 1
            written = writes[step["run"]] if runs[step["run"]] > 1 else ()
            again.update(name for name in written if name not in step.get("skip", ()))
    tensors = graph.tensors
    names = [tensors[tensor]["name"] for tensor in _core.feature_maps(graph)]
    return {name: "swap" if name in fetched else "recompute" if name in again else "keep" for name in names}


def classes_by_kind(result: Result) -> dict[str, dict[str, int]]:
    """The bytes of feature maps: kind of the op that writes them -> class -> bytes. The kind with most comes first.

    Examples
    --------
    >>> import memsched as ms
    >>> classes_by_kind(ms.rotor(ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4]), M=20))
    {'stage': {'keep': 4, 'swap': 0, 'recompute': 8}}
    """
    graph = result.graph
    sizes = {tensor["name"]: tensor["size"] for tensor in graph.tensors}
    kinds = {name: op["kind"] for op in graph.ops for name in op["writes"]}
    found: dict[str, dict[str, int]] = {}
    for name, chosen in feature_map_classes(result).items():
        found.setdefault(kinds[name], dict.fromkeys(CLASSES, 0))[chosen] += sizes[name]
    return dict(sorted(found.items(), key=lambda one: -sum(one[1].values())))
