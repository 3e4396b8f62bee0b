"""The class of each feature map in a plan: keep, swap or recompute (PoocH)."""

from __future__ import annotations

from collections import Counter

from memsched import _core
from memsched.result import Result
from memsched.support import checks

CLASSES = ("keep", "swap", "recompute")


def feature_map_classes(result: Result) -> dict[str, str]:
    """The class of each feature map, an activation that the forward writes and the backward reads.

    A map that is fetched from the host is "swap". A map whose op runs again instead is "recompute". Any other map is
    "keep": it stays on the device until its last use, or never comes back.

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
    runs = Counter(step["run"] for step in steps if "run" in step)
    again = {name for op in graph.ops if runs[op["name"]] > 1 for name in op["writes"]}
    tensors = graph.tensors
    names = [tensors[tensor]["name"] for tensor in _core.feature_maps(graph)]
    return {name: "swap" if name in fetched else "recompute" if name in again else "keep" for name in names}
