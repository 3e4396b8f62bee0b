"""How long each operation of a step takes, and which bytes it really makes: measured here, or modelled."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median
from typing import Any

import torch
from torch import fx

from memsched.errors import MemschedError
from memsched.torch.facts import fake_mode, tensors_of
from memsched.torch.graph_step.gradients import Discarded
from memsched.torch.graph_step.interpret import Pass
from memsched.torch.graph_step.program import Program
from memsched.torch.graph_step.resolve import key_of
from memsched.torch.lanes import Lanes
from memsched.torch.leaves import has_no_data
from memsched.torch.machines import Machine
from memsched.torch.roofline import Roofline
from memsched.torch.script import Action, Key, Script, host_places
from memsched.torch.stage_times import Clock

_NO_LIMIT = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was found of one operation.

    Attributes
    ----------
    seconds : float
    workspace : int
        Bytes that it took for itself while it ran, as far as the allocator tells: on CUDA.
    makes : tuple of int
        Bytes of each of its new storages.
    """

    seconds: float
    workspace: int
    makes: tuple[int, ...]


def measure_operations(
    program: Program,
    state: Sequence[torch.Tensor],
    lanes: Lanes,
    *,
    given: Sequence[torch.Tensor] = (),
    offload: bool,
    repeat: int = 3,
) -> list[Measured]:
    """Run the step on copies of inputs and take the median of each operation's times. Nothing is left behind.

    Parameters
    ----------
    program : Program
    state : sequence of Tensor
        The parameters and the buffers; they are only read.
    lanes : Lanes
    given : sequence of Tensor
        The distinct inputs. Where there are none, or they have no data, values are made up.
    offload : bool
        Between two operations all tensors wait on the host: the device has to hold one operation at a time only.
    repeat : int
        How often the step runs, after one run that is not timed. With 0 only bytes are found, and all times are 0.
    """
    device = program.device
    script = _one_by_one(program) if offload else _plain(program)
    host = lanes.host_memory(script.host_bytes)
    clocks = [_Timing(program, lanes) for _ in range(repeat + 1)]
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.autocast(device.type, enabled=False):
        for clock in clocks:
            likes = [program.examples[source.node] for source in program.inputs]
            inputs = [_copied(like, one) for like, one in zip_longest(likes, given)]
            one = Pass(
                program,
                script,
                list(state),
                inputs,
                gradients=Discarded(),
                lanes=lanes,
                host=host,
                observer=clock,
                learning=not offload,
            )
            one.run()
    times = zip(*([clock.seconds() for clock in clocks[1:]] or [[0.0] * len(program.operations)]), strict=True)
    return [
        Measured(seconds=median(seconds), workspace=max(0, workspace - sum(one.made[k])), makes=one.made[k])
        for k, (seconds, workspace) in enumerate(zip(times, clocks[-1].workspaces, strict=True))
    ]


class _Timing:
    """An observer that times the runs, and asks CUDA's allocator what they take."""

    def __init__(self, program: Program, lanes: Lanes) -> None:
        self._device, self._lanes = program.device, lanes
        self._clock = Clock(program.device)
        self._before = 0
        self.workspaces: list[int] = []

    def before(self, step: int, action: Action) -> None:
        if action.kind in ("forward", "backward"):
            self._lanes.finish()  # what it reads is there
            if self._device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self._device)
                self._before = int(torch.cuda.memory_allocated(self._device))
            self._clock.start()

    def after(self, step: int, action: Action, event: Any) -> None:
        if action.kind in ("forward", "backward"):
            self._clock.stop()
            most = torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else 0
            self.workspaces.append(int(most) - self._before)

    def seconds(self) -> list[float]:
        """Of each operation."""
        return self._clock.seconds()


def _plain(program: Program) -> Script:
    """Everything stays until it is read for the last time."""
    last = _last_readers(program)
    actions: list[Action] = []
    for k in range(len(program.operations)):
        actions.append(_run(program, k))
        freed = [number for number, reader in last.items() if reader == k]
        actions += [Action(kind="free", moves=(key_of(number),)) for number in freed]
    return _script(program, actions)


def _one_by_one(program: Program) -> Script:
    """What an operation reads comes from the host right before it, and what is left goes there right after it."""
    last = _last_readers(program)
    actions = [_move(kind, source.block) for source in program.inputs for kind in ("offload", "free")]
    for k, operation in enumerate(program.operations):
        actions += [_move("prefetch", number) for number in operation.reads]
        actions.append(_run(program, k))
        actions += [_move("free", number) for number in operation.reads]
        made = [number for number in operation.makes if number in last]
        actions += [_move(kind, number) for number in made for kind in ("offload", "free")]
    return _script(program, actions)


def _last_readers(program: Program) -> dict[int, int]:
    return {number: k for k, operation in enumerate(program.operations) for number in operation.reads}


def _move(kind: Any, number: int) -> Action:
    return Action(kind=kind, moves=(key_of(number),))


def _run(program: Program, k: int) -> Action:
    operation = program.operations[k]
    tensors = [n for n in operation.makes if program.blocks[n].role in ("activation", "gradient")]
    return Action(
        kind="backward" if operation.place.backward else "forward",
        stage=k,
        first=True,
        reads=tuple(map(key_of, operation.reads)),
        writes=tuple(map(key_of, tensors)),
    )


def _script(program: Program, actions: list[Action]) -> Script:
    tensors = [n for n, block in enumerate(program.blocks) if block.role in ("input", "activation", "gradient")]
    sizes: dict[Key, int] = {key_of(number): program.blocks[number].bytes for number in tensors}
    host, host_bytes = host_places(actions, sizes)
    return Script(
        actions=tuple(actions),
        forward_end=(),
        backward_end=(),
        repeated=frozenset(),
        host=host,
        host_bytes=host_bytes,
        device_bytes=_NO_LIMIT,
        sizes=sizes,
    )


def _copied(like: torch.Tensor, given: torch.Tensor | None) -> torch.Tensor:
    """Real values for a tensor without data: given ones, or made up. As an index 0 is always right."""
    made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
    if given is not None and not has_no_data(given) and not (0 in made.stride() and made.numel() > 1):
        return made.copy_(given.detach())
    return made.normal_() if like.is_floating_point() else made.zero_()


def model_operations(program: Program, machine: Machine) -> list[float]:
    """Seconds of each operation by the roofline model of a machine. Nothing is computed."""
    fake = fake_mode(tensors_of(list(program.examples.values())))
    seconds = []
    with fake, torch.no_grad(), torch.autocast(program.device.type, enabled=False), Roofline(machine) as roofline:
        for operation in program.operations:
            args, kwargs = fx.map_arg((operation.node.args, operation.node.kwargs), program.examples.__getitem__)
            target: Any = operation.node.target
            roofline.lap()
            target(*args, **kwargs)
            seconds.append(roofline.lap())
    return seconds


def with_real_bytes(program: Program, found: Sequence[Measured]) -> Program:
    """The program with the bytes that its operations make on the device.

    Raises
    ------
    MemschedError
        An operation makes more or fewer storages than it does without data.
    """
    blocks = list(program.blocks)
    more = 0
    for operation, measured in zip(program.operations, found, strict=True):
        if len(measured.makes) != len(operation.makes):
            raise MemschedError(
                f"{operation.node.target} makes {len(measured.makes)} storages on {program.device} and "
                f"{len(operation.makes)} when it is traced, so that its step cannot be planned as a graph; use "
                "memsched.torch.plan"
            )
        for number, nbytes in zip(operation.makes, measured.makes, strict=True):
            if blocks[number].role == "result":
                more += nbytes - blocks[number].bytes
            blocks[number] = dataclasses.replace(blocks[number], bytes=nbytes)
    return dataclasses.replace(program, blocks=tuple(blocks), resident=program.resident + more)
