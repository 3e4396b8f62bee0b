"""DYNPROG (Euro-Par 2020, section 5): the best offload set in the interruptible model, then simulated."""

from __future__ import annotations

from functools import partial
from typing import Any

from memsched import _core
from memsched._core import Chain, ChainPlanner, Device
from memsched.errors import InvalidInputError
from memsched.planners.entry import Figures, Planner, options_of
from memsched.planners.sets import ChainCall, begin_chain, least_of_fluid_model, plans_of
from memsched.problems.fluid import MAX_STATES, FluidSolution, fluid_chain, fluid_solve, fluid_solve_in_slots
from memsched.problems.problem import ChunkLike
from memsched.result import Result
from memsched.support import checks, quantities
from memsched.support.types import Flags, Progress, Quantity

_OPTIONS = ("slots", "method", "ties", "gap", "max_rounds", "max_states")

# By dominance and bounds, with the defaults below, but the set that the model finds.
DYNPROG = ChainPlanner.dynprog(500, max_rounds=50, gap=0.0, max_states=MAX_STATES, break_ties=False)


def _paper_set(call: ChainCall, slots: int | None, max_rounds: int, **options: Any) -> tuple[Flags, FluidSolution]:
    """The set that DYNPROG offloads by the paper's Algorithm 1, if not everything fits."""
    instance = fluid_chain(call.chain, call.device)
    if slots is None:
        solution = fluid_solve(instance, hash_tables=True, **options)
    else:
        solution = fluid_solve_in_slots(instance, slots, max_rounds=max_rounds, **options)
    return call.tensors(solution.offloaded), solution


def _checked(
    slots: int | None, method: str, ties: str | None, gap: float, max_rounds: int, max_states: int
) -> tuple[int | None, str, dict[str, Any]]:
    """The checked slots, rule for ties, and limits of the search."""
    if slots is not None:
        slots = checks.count("slots", slots, 1, 10_000_000)
    checks.choice("method", method, ("pruned", "hash"))
    if ties is not None:
        checks.choice("ties", ties, ("simulate", "paper"))
    if ties == "simulate" and method == "hash":
        raise InvalidInputError("ties='simulate' needs method='pruned': method='hash' is the paper's algorithm alone")
    limits = {
        "max_rounds": checks.count("max_rounds", max_rounds, 1, 1_000_000),
        "max_states": checks.count("max_states", max_states, 1_000, 1_000_000_000),
        "gap": checks.non_negative("gap", gap, "units"),
    }
    return slots, ties or ("paper" if method == "hash" else "simulate"), limits


def dynprog_figures(chain: Chain, *, chunk: ChunkLike = None, **options: Any) -> Figures | None:
    """A function that plans for many devices at once and returns figures only.

    None for the paper's algorithm, and with a time limit.
    """
    given = {name: one.default for name, one in options_of(dynprog).items()} | options
    slots, ties, limits = _checked(*(given[name] for name in _OPTIONS))
    if given["method"] == "hash" or given["time_limit"] is not None:
        return None
    return partial(plans_of(chain, chunk).figures, ChainPlanner.dynprog(slots, break_ties=ties == "simulate", **limits))


@Planner("dynamic program, interruptible model", needs=least_of_fluid_model, figures=dynprog_figures)
def dynprog(
    chain: Chain,
    M: Quantity | None = None,
    beta: Quantity | None = None,
    *,
    device: Device | None = None,
    slots: int | None = 500,
    method: str = "pruned",
    ties: str | None = None,
    time_limit: Quantity | None = None,
    gap: float = 0.0,
    max_rounds: int = 50,
    max_states: int = MAX_STATES,
    chunk: ChunkLike = None,
    progress: Progress = None,
) -> Result:
    """Choose the set of activations to offload by dynamic programming over (K, dF, dB).

    Optimal in the interruptible model (transfers may pause, memory is acquired and released continuously) among
    schedules in which no prefetch starts before the last offload has ended. The plan offloads exactly this set, and its
    makespan is simulated. `estimate` is the value in the interruptible model. Many sets share the best value there but
    differ in makespan with whole transfers; `ties` says which one is taken. The model has one bandwidth: if those of
    the two directions differ, their harmonic mean, with which the plan may take less than `estimate`.

    Parameters
    ----------
    slots : int or None
        Memory slots of the discretisation (section 5.3.2); None works on the real sizes, as does a memory so close
        to the minimum that rounding up leaves no solution.
    method : "pruned" or "hash"
        "pruned" uses dominance and bounds; "hash" is the paper's Algorithm 1 with hash tables and nothing else. If
        rounding to slots leaves no solution, "pruned" decides on the real sizes; then params["slots_used"] is None.
    ties : "simulate", "paper" or None
        "simulate" takes GREEDY's set if the model rates it no worse and the simulator rates it better; "paper" takes
        the set that the dynamic program finds. None means "simulate" for method "pruned" and "paper" for method
        "hash", which supports nothing else.
    time_limit : float or str, optional
        Seconds in total; then the best set so far is taken (method "pruned").
    gap : float
        Stop at a proven (makespan - bound) / bound of this size, in the interruptible model.
    max_rounds : int
        Most rounds of the discretisation, each a dynamic program of its own; after that the real sizes are used.
    max_states : int
        Bound on the memory: states kept, at 4 bytes each, plus 1/32 as many at 150 bytes in work (the default is about
        0.4 GB; the hash tables take 50 bytes per state of one stage). When it is reached, the search stops with its
        best set.

    Returns
    -------
    Result
        `optimal` is True if the simulated makespan is proven best; params["proven"] says whether the set is proven
        best in the interruptible model (in slots, if slots are used). It is False, and params["model_lower_bound"]
        (with slots=None) is None, where tensors must travel and the two bandwidths differ.

    Raises
    ------
    LimitError
        The hash tables exceed max_states.

    References
    ----------
    Beaumont, Eyraud-Dubois, Shilova, Euro-Par 2020, section 5, equations (1)-(10) as corrected in docs/errata.md.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4])
    >>> ms.dynprog(chain, M=20, beta=4, slots=None).makespan
    6.0
    """
    slots, ties, limits = _checked(slots, method, ties, gap, max_rounds, max_states)
    time_limit = quantities.time_limit(time_limit)
    call = begin_chain(dynprog, chain, M, beta, device, chunk)
    solution: FluidSolution | _core.FluidSolution | None
    if method == "hash" and call.excess > 0:
        chosen, solution = _paper_set(call, slots, time_limit=time_limit, progress=progress, **limits)
    else:
        planner = ChainPlanner.dynprog(slots, break_ties=ties == "simulate", **limits)
        chosen, solution = call.plans.choose(planner, call.device, time_limit, progress)
        assert solution is not None
    bounds_plans = fluid_chain(call.chain, call.device).bounds_plans
    params: dict[str, Any] = {
        "slots": slots,
        "method": method,
        "ties": ties,
        "chunk": call.chunk,
        "proven": solution.optimal and bounds_plans,
        "states": solution.states,
        "rounds": solution.rounds,
        "slots_used": solution.slots or None,
    }
    if slots is None:
        params["model_lower_bound"] = solution.lower_bound if bounds_plans else None
    said = {"name": "dynprog", "slots": slots, "method": method, "ties": ties}
    return call.plan(said, params, chosen, estimate=solution.makespan)
