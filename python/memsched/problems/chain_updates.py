"""Whole steps of chains: each stage with its parameters, their gradients, the optimiser's states and an update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from memsched._core import Chain, Graph
from memsched.errors import InvalidInputError, shown
from memsched.problems.problem import to_graph
from memsched.support import checks, quantities
from memsched.support.arguments import public
from memsched.support.formats import exact_bytes
from memsched.support.types import Quantity, Size

STAGE_GRADIENTS = "stage_gradients"
"""In the provenance of a chain, by stage, the bytes of the gradients of its parameters, which are as large."""


class _Updates(NamedTuple):
    """Of each stage."""

    parameters: tuple[int, ...]  # bytes
    gradients: tuple[int, ...]
    states: tuple[int, ...]
    seconds: tuple[float, ...]
    resident: int  # bytes of what is of no stage


@public
def whole_step(
    chain: Chain,
    states: float | Sequence[Size],
    update_time: Quantity | Sequence[Quantity],
    *,
    parameters: Sequence[Size] | None = None,
    gradients: Sequence[Size] | None = None,
) -> Graph:
    """The graph of a chain with the updates of its parameters, so that parameters and states may travel.

    It is that of `to_graph` with persistent tensors: w1 .. wn, the parameters, which F_k and B_k read, and m1 .. mn,
    the states. B_k also writes their gradients, g_k, and an op U_k right after it reads g_k and updates w_k and m_k.
    What has no bytes is left out. `selective` plans it; its plans are repeated (docs/schedule.md). `update_in_backward`
    is the same step for planners of chains.

    Parameters
    ----------
    chain : Chain
        Its `resident` counts the parameters and the gradients, as that of a profile does.
    states : float or sequence of int, shape [n]
        Bytes of the optimiser's states of each stage; or a number, by which those of the parameters are multiplied: 2
        for AdamW and 1 for SGD with momentum, where states are of the parameters' type.
    update_time : sequence of float, shape [n], or float or str
        Seconds of each update; or the bytes per second that the device reads and writes, such as "900 GB/s": an update
        reads what it updates and the gradient, and writes what it updates.
    parameters : sequence of int, shape [n], optional
        Bytes of the parameters of each stage that learn, and that no other stage reads. Default: those of the profile.
    gradients : sequence of int, shape [n], optional
        Bytes of their gradients. Default: as many.

    Raises
    ------
    InvalidInputError
        A column has another length or a negative entry, the profile does not tell the parameters of each stage, or they
        exceed `chain.resident`.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1], [2, 2], [4, 4, 4], [0, 4, 4], resident=40)
    >>> step = ms.whole_step(chain, states=2, update_time=[0.5, 0.5], parameters=[10, 10])
    >>> [op["name"] for op in step.ops]
    ['F1', 'F2', 'loss', 'B2', 'U2', 'B1', 'U1']
    >>> ms.peak_memory(step), ms.min_memory(step, "selective")
    (90, 40)
    >>> round(ms.selective(step, 60, 100).makespan, 2)
    7.14
    """
    found = _checked(chain, states, update_time, parameters, gradients)
    graph = to_graph(chain)
    tensors, ops = list(graph.tensors), dict[str, Any]()
    for op in graph.ops:
        ops[op["name"]] = op
        if op["name"] == "loss":
            continue
        k = op["layer"]
        size = {"w": found.parameters[k - 1], "m": found.states[k - 1], "g": found.gradients[k - 1]}
        w, m, g = ([f"{letter}{k}"] if size[letter] else [] for letter in size)
        op["reads"] = [*op["reads"], *w]
        if op["phase"] == "bwd":
            op["writes"] = [*op["writes"], *g]
            tensors += [{"name": one, "size": size[one[0]], "role": "persistent"} for one in (*w, *m)]
            tensors += [{"name": one, "size": size["g"], "role": "gradient"} for one in g]
            ops |= _update(k, [*w, *m], g, found.seconds[k - 1])
    return Graph(tensors, list(ops.values()), name=graph.name, resident=found.resident)


def _update(k: int, changed: list[str], gradient: list[str], seconds: float) -> dict[str, dict[str, Any]]:
    """The op, by its name; none where a stage has nothing to update."""
    if not changed and not gradient:
        return {}
    choice = {"alg": "default", "time": seconds, "workspace": 0}
    read = {"reads": [*changed, *gradient], "updates": changed, "writes": []}
    return {
        f"U{k}": {"name": f"U{k}", "phase": "bwd", "kind": "update", "layer": k, "once": True, "choices": [choice]}
        | read
    }


@public
def update_in_backward(
    chain: Chain,
    states: float | Sequence[Size],
    update_time: Quantity | Sequence[Quantity],
    *,
    parameters: Sequence[Size] | None = None,
    gradients: Sequence[Size] | None = None,
) -> Chain:
    """The chain whose backwards also update the parameters, so that planners of chains plan the whole step.

    Parameters and states stay on the device; the gradients of a stage are there while its backward runs, and not all of
    them all the time. A plan of this chain, with whole tensors, is one of `whole_step` in the same memory if each U_k
    is listed right after its B_k, and the input stays to the end. Transfers listed after it may then start later.

    Parameters
    ----------
    chain, states, update_time, parameters, gradients
        As `whole_step` takes them.

    Raises
    ------
    InvalidInputError
        As `whole_step`.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1], [2, 2], [4, 4, 4], [0, 4, 4], resident=40)
    >>> step = ms.update_in_backward(chain, states=2, update_time=[0.5, 0.5], parameters=[10, 10])
    >>> step.backward_time.tolist(), step.backward_overhead.tolist(), step.resident
    ([2.5, 2.5], [10, 10], 60)
    >>> ms.dynprog(step, 86, 4).makespan
    8.0
    """
    found = _checked(chain, states, update_time, parameters, gradients)
    stay = sum(found.parameters) + sum(found.states)
    provenance = chain.provenance
    if provenance is not None:
        resident = {"parameters": sum(found.parameters), "states": sum(found.states), "other": found.resident}
        provenance = {key: one for key, one in provenance.items() if key != STAGE_GRADIENTS} | {"resident": resident}
    return Chain(
        chain.forward_time,
        [took + more for took, more in zip(chain.backward_time.tolist(), found.seconds, strict=True)],
        chain.activation,
        chain.gradient,
        saved=chain.saved,
        forward_overhead=chain.forward_overhead,
        transient_overhead=chain.transient_overhead,
        backward_overhead=[
            own + more for own, more in zip(chain.backward_overhead.tolist(), found.gradients, strict=True)
        ],
        names=chain.names,
        resident=found.resident + stay,
        pieces=chain.pieces,
        name=chain.name,
        provenance=provenance,
    )


def _checked(chain: Chain, states: Any, update_time: Any, parameters: Any, gradients: Any) -> _Updates:
    n = checks.kind("chain", chain, Chain).n
    if parameters is None:
        parameters = (chain.provenance or {}).get(STAGE_GRADIENTS)
        if parameters is None:
            raise InvalidInputError(
                f"'{chain.name}' does not tell the parameters of each of its {n} stages, as a profile of "
                "memsched.torch does if each parameter has a stage of its own; give parameters=[..], the bytes of each"
            )
    weights = _bytes("parameters", parameters, n)
    grown = weights if gradients is None else _bytes("gradients", gradients, n)
    if checks.is_list(states):
        state = _bytes("states", states, n)
    else:
        if not 0 <= (times := checks.as_float(states)) < math.inf:
            raise InvalidInputError(
                f"states is {shown(states)}; give a number >= 0, by which the bytes of the parameters are multiplied, "
                f"such as 2 for AdamW, or a list of the bytes of each of {n} stages"
            )
        state = tuple(_times("states", times, size) for size in weights)
    rest = chain.resident - sum(weights) - sum(grown)
    if rest < 0:
        raise InvalidInputError(
            f"resident of '{chain.name}' is {exact_bytes(chain.resident)}; it must count the parameters and the "
            f"gradients of its stages, which are {exact_bytes(sum(weights) + sum(grown))}"
        )
    return _Updates(weights, grown, state, _seconds(update_time, weights, grown, state), rest)


def _times(name: str, times: float, size: int) -> int:
    product = times * size
    if product > checks.EXACT_BYTES:
        raise InvalidInputError(f"{name} is {times:g}, and {size} bytes times that are more than 2^53")
    return math.ceil(product)


def _bytes(name: str, values: Any, n: int) -> tuple[int, ...]:
    return tuple(quantities.size(f"{name}[{k}]", one) for k, one in enumerate(_column(name, values, n)))


def _column(name: str, values: Any, n: int) -> list[Any]:
    if not checks.is_list(values):
        raise InvalidInputError(f"{name} is {shown(values)}; it must be a list with an entry for each of {n} stages")
    listed = values.tolist() if hasattr(values, "tolist") else list(values)
    if len(listed) != n:
        raise InvalidInputError(f"{name} has {len(listed)} entries; it must have {n}, one for each stage")
    return listed


def _seconds(given: Any, weights: Sequence[int], grown: Sequence[int], state: Sequence[int]) -> tuple[float, ...]:
    """Of each update."""
    sizes = list(zip(weights, grown, state, strict=True))
    if checks.is_list(given):
        listed = _column("update_time", given, len(sizes))
        found = tuple(quantities.seconds(f"update_time[{k}]", one) for k, one in enumerate(listed))
        for k, (took, size) in enumerate(zip(found, sizes, strict=True)):
            if took and not any(size):
                said = f"update_time[{k}] is {shown(listed[k])}, and that stage has nothing to update; give 0 for it"
                raise InvalidInputError(said)
        return found
    rate = quantities.bandwidth("update_time", given)
    if not rate >= 1:
        raise InvalidInputError(
            f"update_time is {shown(given)}; give seconds of each stage, or at least 1 byte per second"
        )
    return tuple((2 * (w + m) + g) / rate for w, g, m in sizes)
