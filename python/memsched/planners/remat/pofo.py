"""POFO: recompute and offload together (NeurIPS 2021)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from memsched import _core
from memsched._core import Chain, Device, RematPlan, RematTable, Schedule
from memsched.errors import InvalidInputError, LimitError
from memsched.planners.entry import Planner
from memsched.planners.remat.recompute import (
    MOST_LAYERS,
    ROTOR_SLOTS,
    SPARE,
    STEPS,
    Tables,
    UnrolledRuns,
    best_rotor_plan,
    pofo_min_memory,
    rotor_min_memory,
    rotor_plan,
    spare_slots,
    unroll,
)
from memsched.planners.sets import ChainCall, begin_chain
from memsched.problems.problem import ChunkLike, simulate
from memsched.result import Result
from memsched.support import checks, quantities
from memsched.support.types import Progress, Quantity

EXACT_SLOTS = 50
MOST_EXACT_SLOTS = 200  # one layer has up to slots^3 / 3 states
BEAM = 50_000  # states kept per layer, times stages
SHORT = 40  # stages; up to here "auto" also tries exact labels with EXACT_SLOTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One plan of the dynamic program: how it was found, and its simulated makespan."""

    plan: RematPlan | None
    labels: str
    slots: int
    run: UnrolledRuns
    makespan: float
    phased: bool = False  # prefetches wait for the last offload, as in the paper

    @classmethod
    def of(cls, call: ChainCall, plan: RematPlan | None, labels: str, slots: int, tables: Tables) -> Attempt:
        """The attempt with this plan, simulated."""
        run = unroll(call, plan, tables.until)
        return cls(plan=plan, labels=labels, slots=slots, run=run, makespan=run.makespan())

    def in_phases(self) -> Attempt:
        """The same in phases: slower as a rule, but transfers in pieces may get into each other's way."""
        call = self.run.call
        makespan = simulate(call.graph, _in_phases(self.run.schedule({"name": "pofo"})), call.device).makespan
        return replace(self, phased=True, makespan=makespan)

    def schedule(self, planner: dict[str, Any]) -> Schedule:
        """Its list of steps."""
        found = self.run.schedule(planner)
        return _in_phases(found) if self.phased else found


def _finished(
    best: Attempt,
    beam: int | None,
    time_limit: float,
    moves: int | None,
    seed: int,
    params: dict[str, Any],
    progress: Progress = None,
    *,
    anneal: bool = False,
) -> Result:
    """The Result, after the searches around the plan, with the value in the continuous model if there is one."""
    planner = {"name": "pofo", "labels": best.labels, "slots": best.slots, "beam": beam}
    states = best.plan.states if best.plan else 0
    params = {**params, "labels_used": best.labels, "slots_used": best.slots, "states": states}
    call, schedule = best.run.call, best.schedule(planner)
    if (time_limit > 0 or moves) and best.run.travels.any():
        found, params["evaluations"] = best.run.searched(planner, time_limit, moves, seed, progress, anneal=anneal)
        if not best.phased or simulate(call.graph, found, call.device).makespan <= best.makespan:
            schedule = found
    estimate = best.plan.time if best.plan else best.makespan if call.excess <= 0 else None
    estimate = None if estimate == math.inf else estimate  # rounded up to slots, transfers may take forever
    return call.result(params, schedule, estimate=estimate)


def _in_phases(schedule: Schedule) -> Schedule:
    """All offloads before the loss and all prefetches after it, as in the paper."""
    steps = schedule.steps
    loss = next(at for at, step in enumerate(steps) if step.get("run") == "loss")
    before = [step for step in steps[:loss] if "prefetch" not in step]
    fetched = [step for step in steps[:loss] if "prefetch" in step]
    offloads = [at for at, step in enumerate(before) if "offload" in step]
    waits = {"run": "loss", "after": offloads[-1:]} if offloads else {"run": "loss"}
    return schedule.with_steps([*before, waits, *fetched, *steps[loss + 1 :]])


def _plans(call: ChainCall, labels: str, slots: int | None, beam: int | None, tables: Tables) -> Iterator[Attempt]:
    """The plans with the given kind of labels, or with each kind that "auto" tries."""
    width = beam or min(1000, max(100, BEAM // call.chain.n))
    real = slots or (1000 if call.chain.n <= 128 else 400)
    kinds = {
        "real": [("real", real)],
        "exact": [("exact", slots or EXACT_SLOTS)],
        "auto": [("real", real)] if tables.shared else [("real", real), ("real", max(1, real // 2))],
    }[labels]
    if labels == "auto" and call.chain.n <= SHORT and not tables.shared:
        kinds.append(("exact", min(real, EXACT_SLOTS)))
    for at, (kind, count) in enumerate(kinds):
        for layers in tables.layers(call)[at:] or (MOST_LAYERS,):
            for table in tables.of(call, count, layers):
                found = _fitting(call, table, kind, max(1, width // max(1, table.slots // (2 * count))), tables)
                if found is not None and (kind != "exact" or labels == "auto"):
                    yield found
                if found is not None and kind == "exact":
                    yield found.in_phases()
                if labels == "auto":
                    alone = rotor_plan(call, table)  # which may use the memory that rounding up leaves
                    if alone is not None:
                        yield Attempt.of(call, alone, "none", call.capacity // table.width, tables)
                if found is not None:
                    break


def _fitting(call: ChainCall, table: RematTable, labels: str, beam: int, tables: Tables) -> Attempt | None:
    """The plan of one table. If rounding up leaves none, a plan for a few more slots that fits nevertheless."""
    if labels == "exact" and table.slots > MOST_EXACT_SLOTS * (1 + 1 / SPARE):
        return None
    for more in (0, 1, 2):
        if more > spare_slots(table):
            break
        capacity = call.capacity + more * table.width
        plan = table.pofo(capacity, call.device, labels == "exact", beam, tables.left, tables.progress)
        if plan is not None:
            found = Attempt.of(call, plan, labels, call.capacity // table.width, tables)
            if found.makespan < math.inf:
                return found
    return None


def pofo_attempt(call: ChainCall, *, labels: str, slots: int | None, beam: int | None, tables: Tables) -> Attempt:
    """The plan whose transfers, as early as the rules allow, simulate best; InfeasibleError: host_memory."""
    if call.excess <= 0:
        return Attempt.of(call, None, labels, 0, tables)
    attempts: list[Attempt] = []
    try:
        for attempt in _plans(call, labels, slots, beam, tables):
            attempts.append(attempt)
    except LimitError:
        if not attempts or tables.left != 0:
            raise
    if not attempts:
        attempts.append(_just_fits(call, tables, linked=min(call.device.d2h, call.device.h2d) > 0))
    if labels == "auto" and all(one.labels != "none" for one in attempts):
        attempts.extend(_rotor_alone(call, slots, tables))
    best = min(attempts, key=lambda attempt: attempt.makespan)
    if best.makespan == math.inf and call.device.memory >= rotor_min_memory(call.chain):
        best = _just_fits(call, tables, linked=False)
    if best.makespan == math.inf:
        raise call.host_error()
    return best.in_phases() if labels == "exact" and not best.phased else best


def _rotor_alone(call: ChainCall, slots: int | None, tables: Tables) -> Iterator[Attempt]:
    """What rotor has where rounding leaves none of its plans in the tables of pofo."""
    if call.device.memory < rotor_min_memory(call.chain) or tables.left == 0:
        return
    try:
        plan, used = best_rotor_plan(call, slots or ROTOR_SLOTS, tables)
        found = Attempt.of(call, plan, "none" if used else "least memory", used or 0, tables)
    except LimitError:
        return
    yield found if used else replace(found, plan=None)


def _just_fits(call: ChainCall, tables: Tables, *, linked: bool) -> Attempt:
    """A plan with the least memory, if slots are too coarse or the device cannot make the transfers."""
    plan = _core.least_memory_plan(call.chain, call.capacity, linked)
    return replace(Attempt.of(call, plan, "least memory", 0, tables), plan=None)


def _with_table(
    chain: Chain,
    *,
    device: Device,
    table: RematTable,
    chunk: ChunkLike = None,
    time_limit: float = 0.0,
    threads: int = 0,
    progress: Progress = None,
) -> Result:
    """The same with real labels, from a table that answers all memories up to its own."""
    call = begin_chain(pofo, chain, None, None, device, chunk)
    tables = Tables(
        threads=threads, progress=progress, until=call.until(time_limit or None, STEPS * chain.n), shared=table
    )
    best = pofo_attempt(call, labels="auto", slots=table.slots, beam=None, tables=tables)
    return _finished(
        best, None, time_limit, None, 0, {"labels": "auto", "chunk": call.chunk, "table_slots": table.slots}, progress
    )


@Planner(
    "recomputes and offloads",
    needs=pofo_min_memory,
    needs_alone=rotor_min_memory,
    recomputes=True,
    seconds_an_op=(2.2e-5, 2.2e-5),
    with_table=_with_table,
)
def pofo(
    chain: Chain,
    M: Quantity | None = None,
    beta: Quantity | None = None,
    *,
    device: Device | None = None,
    slots: int | None = None,
    labels: str = "auto",
    beam: int | None = None,
    chunk: ChunkLike = None,
    time_limit: Quantity = 0.0,
    moves: int | None = None,
    anneal: bool = False,
    seed: int = 0,
    threads: int = 0,
    progress: Progress = None,
) -> Result:
    """Recompute and offload together: POFO's dynamic program, then simulated.

    The forward phase is cut into blocks. A block is one layer that saves all that its backward needs, or several layers
    run from a checkpoint. The input of each block stays or is offloaded. The backward phase recomputes each block as
    rotor would, while offloaded inputs are prefetched. With exact labels, and up to rounding to slots, the plan is
    optimal in the continuous model (transfers may pause, memory is acquired and released continuously) among schedules
    that offload only in the forward phase, prefetch only in the backward phase, and recompute a lower part only after
    the upper one is done. With beta = 0 it is rotor's plan, up to slots.

    Parameters
    ----------
    device : Device, optional
        Instead of M and beta, which override its memory and bandwidth. Latency is simulated, but not planned for.
    slots : int, optional
        Memory slots. By default 50 for exact labels; for real ones 1000, or 400 with more than 128 stages.
    labels : "auto", "real" or "exact"
        "exact" rounds all sizes up to slots and searches all states, at most slots^3 / 3 per layer. As in the paper,
        its backward phase starts after the last offload has ended; the others do not wait. "real" keeps real sizes,
        uses slots only to look up recomputation, and keeps `beam` states per layer. "auto" takes the plan with the
        best simulated makespan: of real labels with `slots` and with half as many, rotor's plan, and exact labels for
        chains of up to 40 stages.
    beam : int, optional
        States that real labels keep, per layer and per way to store its input. By default 1000 for up to 50 stages;
        beyond that stages x beam stays constant, down to 100.
    chunk : None, int or str
        Whether the chosen inputs travel whole or in pieces, which come closer to the continuous model.
    time_limit : float or str
        Seconds in total: when they are over, the dynamic program stops with the best plan so far. What it leaves is
        used to search for better transfers on the simulator, with the same runs. 0: no limit, and no search.
    moves : int, optional
        Most moves of that search, rounded up as in `offload`, instead of its time limit; then the plan does not depend
        on the machine.
    anneal : bool
        After that search the list of runs is annealed, too, for as many moves or half of the time, where the plan is
        more than 1 % above the bound. `plan` with "auto" asks for it.

    Returns
    -------
    Result
        `estimate` is the value in the continuous model, in seconds, with the bytes held and still to travel rounded up
        to slots, hence no less than the best of the class. So it is not a bound on the makespan, which may be less.
        Only with exact labels, and if nothing is rounded (every size and, in both directions, beta x every time is a
        whole number of slots), is it the best of the class; it is then at most the makespan, provided saved ==
        activation[1:] and M is below the peak. None if M is so close to the minimum that no slots are fine enough and
        a plan that just fits is returned.

    Raises
    ------
    InfeasibleError
        M < min_memory(chain, "pofo"), or, without a link, min_memory(chain, "rotor").
    LimitError
        This many slots would need a table of more than 240 MB, or exact labels meet more than 399 stages. (With real
        labels, neighbouring stages of longer chains are planned as one, so that 399 remain.) Or M is so close to the
        least memory of a long chain that its stages would run more than 2^20 times.

    References
    ----------
    Beaumont, Eyraud-Dubois, Shilova, "Efficient Combination of Rematerialization and Offloading for Training DNNs",
    NeurIPS 2021, section 4 and appendix B, as corrected in docs/errata.md.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [4, 4, 4, 4], saved=[8, 8, 8])
    >>> ms.rotor(chain, M=28).makespan
    8.0
    >>> ms.pofo(chain, M=28, beta=8).makespan
    6.0
    """
    if slots is not None:
        slots = checks.count("slots", slots, 1, 1_000_000)
    checks.choice("labels", labels, ("auto", "real", "exact"))
    if labels == "exact" and slots is not None and slots > MOST_EXACT_SLOTS:
        raise InvalidInputError(
            f"slots is {slots}; exact labels take at most {MOST_EXACT_SLOTS}, real labels take more"
        )
    if beam is not None:
        beam = checks.count("beam", beam, 1, 1_000_000)
    threads = checks.count("threads", threads, 0, 1024)
    seed = checks.count("seed", seed, 0, 2**63 - 1)
    time_limit = quantities.seconds("time_limit", time_limit)
    if moves is not None:
        moves = checks.count("moves", moves, 0, 2**63 - 1)
    checks.flag("anneal", anneal)
    call = begin_chain(pofo, chain, M, beta, device, chunk)
    if labels == "exact" and chain.n >= MOST_LAYERS:
        raise LimitError(
            f"labels is 'exact'; '{chain.name}' has {chain.n} stages, and exact labels take {MOST_LAYERS - 1}"
        )
    tables = Tables(threads=threads, progress=progress, until=call.until(time_limit or None, STEPS * chain.n))
    best = pofo_attempt(call, labels=labels, slots=slots, beam=beam, tables=tables)
    limit = {"time_limit": time_limit} if moves is None else {"moves": moves}
    params: dict[str, Any] = {"slots": slots, "labels": labels, "beam": beam, "chunk": call.chunk, **limit}
    params["anneal"] = anneal
    return _finished(best, beam, time_limit, moves, seed, params, progress, anneal=anneal)
