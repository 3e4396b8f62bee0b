"""memsched: plans what happens to every activation of a training step, so that it fits a memory budget."""

from memsched import profiles
from memsched._core import Chain, Device, Graph, Schedule, Timeline, to_graph
from memsched.bounds import Bounds, bounds
from memsched.errors import InfeasibleError, InvalidInputError, LimitError, MemschedError, ScheduleError
from memsched.planners.dynprog import dynprog
from memsched.planners.greedy import greedy
from memsched.planners.offload import offload
from memsched.problem import peak_memory, simulate
from memsched.result import Result
from memsched.validate import ValidationReport, validate
