"""ROTOR: optimal persistent rematerialisation, without offloading."""

from __future__ import annotations

from typing import Any

from memsched._core import Chain, Device, RematPlan, RematTable
from memsched.planners.entry import Planner
from memsched.planners.remat.recompute import ROTOR_SLOTS, STEPS, Tables, best_rotor_plan, rotor_min_memory, unroll
from memsched.planners.sets import ChainCall, begin_chain
from memsched.problems.problem import ChunkLike
from memsched.result import Result
from memsched.support import checks, quantities
from memsched.support.types import Progress, Quantity


def _from_tables(call: ChainCall, slots: int, tables: Tables) -> Result:
    """The result from the first table with a plan."""
    params: dict[str, Any] = {"slots" if tables.shared is None else "table_slots": slots, "chunk": call.chunk}
    plan: RematPlan | None = None
    value: float | None = None
    if call.excess <= 0:
        value = float(call.chain.forward_time.sum() + call.chain.backward_time.sum())
    else:
        plan, used = best_rotor_plan(call, slots, tables)
        if used is not None:
            value, params["slots_used"] = plan.time, used
    schedule = unroll(call, plan, tables.until).schedule({"name": "rotor", "slots": slots})
    return call.result(params, schedule, estimate=value)


def _with_table(
    chain: Chain, *, device: Device, table: RematTable, chunk: ChunkLike = None, threads: int = 0
) -> Result:
    """The same from a table that answers all memories up to its own."""
    call = begin_chain(rotor, chain, None, None, device, chunk)
    return _from_tables(call, table.slots, Tables(threads=threads, progress=None, shared=table))


@Planner(
    "recomputes, offloads nothing",
    needs=rotor_min_memory,
    needs_alone=rotor_min_memory,
    recomputes=True,
    uses_link=False,
    seconds_an_op=(1.8e-5, 1.8e-5),
    with_table=_with_table,
)
def rotor(
    chain: Chain,
    M: Quantity | None = None,
    beta: Quantity | None = None,
    *,
    device: Device | None = None,
    slots: int = ROTOR_SLOTS,
    threads: int = 0,
    chunk: ChunkLike = None,
    time_limit: Quantity | None = None,
    progress: Progress = None,
) -> Result:
    """Recompute optimally and offload nothing: the dynamic program of rotor, C_A at Delta = 0.

    The best persistent and nested plan: what a forward has kept stays until its backward, and a lower part of the chain
    is recomputed only after the upper part is done. Sizes are rounded up to slots; memory left by rounding is used by
    taking the plan for the largest memory that still fits.

    Parameters
    ----------
    beta : float, optional
        Ignored: nothing is offloaded.
    device : Device, optional
        Instead of M; M overrides its memory.
    slots : int
        Memory slots. If rounding up leaves no plan, four times as many are tried. The table takes 2 slots n^2 bytes for
        n stages, somewhat more as it counts what rounding up adds, at most 240 MB, and time proportional to slots n^3
        at worst. With more than 399 stages, neighbouring stages are planned as one, so that 399 remain.
    chunk : None, int or str
        How the graph is cut. Nothing is offloaded, so the makespan does not depend on it.
    time_limit : float or str, optional
        Seconds in total, 0 or None for no limit. When they are over, the plan is that of a coarser program, or one
        that just fits.

    Returns
    -------
    Result
        `estimate` is the value of the dynamic program, in seconds. None if M is so close to the minimum that no slots
        are fine enough and a plan that just fits is returned.

    Raises
    ------
    LimitError
        This many slots would need a larger table, or M is so close to the least memory of a long chain that its stages
        would run more than 2^20 times.

    References
    ----------
    Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, "Optimal checkpointing for heterogeneous chains" (2019), with the
    memory needs of Beaumont, Eyraud-Dubois, Shilova, NeurIPS 2021, section B.3 as corrected in docs/errata.md.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [4, 4, 4, 4])
    >>> result = ms.rotor(chain, M=20)
    >>> result.makespan, result.recomputed
    (8.0, ('F1', 'F2'))
    """
    slots = checks.count("slots", slots, 1, 1_000_000)
    threads = checks.count("threads", threads, 0, 1024)
    time_limit = quantities.time_limit(time_limit) or None
    call = begin_chain(rotor, chain, M, beta, device, chunk)
    return _from_tables(
        call, slots, Tables(threads=threads, progress=progress, until=call.until(time_limit, STEPS * chain.n))
    )
