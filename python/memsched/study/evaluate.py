"""A plan of anybody's, simulated and bounded: a result like those of the planners."""

from __future__ import annotations

from dataclasses import replace

from memsched._core import Device, Schedule
from memsched.problems.bounds import bound_of, certified
from memsched.problems.budget import make_device
from memsched.problems.problem import Problem, simulate
from memsched.result import Result
from memsched.support import checks
from memsched.support.docstrings import documented
from memsched.support.types import Quantity


@documented
def evaluate(
    problem: Problem,
    schedule: Schedule,
    M: Quantity | None = None,
    beta: Quantity | None = None,
    *,
    device: Device | None = None,
) -> Result:
    """Simulate and bound a plan of your own, so that it can be drawn, reported and compared as those of planners.

    Parameters
    ----------
    problem : Chain, Graph or GraphFamily
    schedule : Schedule
        Its `planner` names the planner, such as {"name": "mine"}.
    M : int or str, optional
        By default the budget of the schedule.

    Returns
    -------
    Result
        `planner` is the name that the schedule gives, by default "user". `lower_bound` is on plans that run each op
        once, in graph order, if this one does, and else on all.

    Raises
    ------
    ScheduleError
        It cannot run; the message names the step.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1], [1, 1], [4, 4, 4])
    >>> mine = ms.Schedule([{"run": name} for name in ("F1", "F2", "loss", "B2", "B1")], budget=40)
    >>> ms.evaluate(chain, mine, beta=1).makespan
    4.0
    """
    checks.kind("schedule", schedule, Schedule)
    memory = schedule.budget if M is None and device is None else M
    return evaluated(problem, schedule, make_device(problem, memory, beta, device))


def evaluated(problem: Problem, schedule: Schedule, device: Device) -> Result:
    """The same on a device."""
    made = Result(
        planner=str(schedule.planner.get("name", "a plan")),
        problem=problem,
        device=device,
        schedule=schedule,
        timeline=simulate(problem, schedule, device),
        lower_bound=0.0,
        bound_on="all" if schedule.recomputed else "once",
        runtime=0.0,
    )
    return bounded_anew(made)


def bounded_anew(made: Result) -> Result:
    """With a bound on plans that run each op once, in graph order, if this one does, and else on all."""
    runs = [step["run"] for step in made.schedule.steps if "run" in step]
    on = made.bound_on if runs == [op["name"] for op in made.graph.ops] else "all"
    bound = certified(bound_of(made.problem, made.schedule, made.device, on), made.makespan)
    return replace(made, lower_bound=bound, bound_on=on)
