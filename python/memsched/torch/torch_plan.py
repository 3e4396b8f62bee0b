"""A plan for one model: apply it, take it off, prove it, measure it, save it."""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from memsched._core import Chain, Timeline
from memsched.errors import InvalidInputError, MemschedError
from memsched.problems.problem import peak_memory
from memsched.result import Result
from memsched.support import checks
from memsched.support.documents import Document, Source, check_keys, read_document, write_document
from memsched.torch.capture import Autocast, only_device
from memsched.torch.check import difference, standing_in
from memsched.torch.choose_lanes import lanes_on, trial_lanes
from memsched.torch.lanes import Lanes
from memsched.torch.leaves import Leaf, dtype_named
from memsched.torch.machines import Link
from memsched.torch.measure import StepRecorder
from memsched.torch.meter import Meter
from memsched.torch.nesting import nesting_from_json, nesting_to_json
from memsched.torch.planned import PlannedForward
from memsched.torch.report import describe_plan
from memsched.torch.resident import Resident
from memsched.torch.script import Script, compile_schedule
from memsched.torch.solve import solve
from memsched.torch.stage_bytes import measure_bytes
from memsched.torch.stages import StagedModel, stage
from memsched.torch.trial import Step, first_difference, trial_step, untouched

FORMAT = "memsched-torch-plan/1"
_KEYS = ("format", "kind", "result", "resident", "inputs", "leaves", "autocast", "device", "times", "operations")


class TorchPlan:
    """How one training step of a model fits a budget.

    Made by `memsched.torch.plan`, or read by `TorchPlan.load`.

    Attributes
    ----------
    result : Result
        The plan of the model's chain, simulated. Its budget, peak and resident bytes are those of the whole process.
    resident : Resident
        What no plan moves, split by what it is for.
    inputs : TreeSpec
        How (args, kwargs) nest.
    leaves : tuple of Leaf
        What each leaf of the inputs is like.
    which : tuple of int
        Of each leaf that is a tensor, which of the distinct tensors it is.
    autocast : Autocast
    device : torch.device
        Where the model was.
    times : str
        Where the times come from: measured, or a model.
    operations : tuple of str
        What the operations of each stage are recognised by.
    """

    KIND = "stages"
    KEYS: tuple[str, ...] = _KEYS
    REPEATS = True  # a forward may run twice, so that it is known what it does

    def __init__(
        self,
        *,
        result: Result,
        resident: Resident,
        inputs: pytree.TreeSpec,
        leaves: tuple[Leaf, ...],
        autocast: Autocast,
        device: torch.device,
        times: str,
        which: tuple[int, ...],
        operations: tuple[str, ...] = (),
        captured: tuple[torch.nn.Module, StagedModel] | None = None,
    ) -> None:
        self.result, self.resident = result, resident
        self.inputs, self.leaves, self.autocast, self.device, self.times = inputs, leaves, autocast, device, times
        self.operations = operations
        self._captured: weakref.WeakKeyDictionary[torch.nn.Module, StagedModel] = weakref.WeakKeyDictionary()
        if captured is not None:
            self._captured[captured[0]] = captured[1]
        self.which = which
        self._applied: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"TorchPlan({self.result!r})"

    @property
    def chain(self) -> Chain:
        """The model as a chain of stages."""
        assert isinstance(self.result.problem, Chain)
        return self.result.problem

    def report(self, measured: Timeline | None = None) -> str:
        """What the plan does and what it costs, as text.

        Parameters
        ----------
        measured : Timeline, optional
            From `measure`: shown beside the prediction.
        """
        return describe_plan(self.result, self.resident, self.times, measured)

    def at(
        self,
        budget: str | int,
        *,
        planner: str = "auto",
        host_memory: str | int | None = None,
        time_limit: float | None = None,
    ) -> TorchPlan:
        """A plan of the same model for another budget, from what was measured for this one.

        Parameters
        ----------
        budget, planner, host_memory, time_limit
            As `memsched.torch.plan` takes them.

        Raises
        ------
        InfeasibleError
            The budget is too small; `.min_memory` is the smallest feasible one.
        """
        device = self.result.device
        link = Link(name=device.name or "link", bandwidth=min(device.d2h, device.h2d), duplex=device.duplex, source="")
        other = copy.copy(self)
        other.result = solve(
            self.chain,
            budget=budget,
            link=link,
            planner=planner,
            host_memory=device.host_memory if host_memory is None else host_memory,
            time_limit=time_limit,
        )
        other._applied = weakref.WeakSet()
        return other

    def apply(self, model: torch.nn.Module) -> torch.nn.Module:
        """Let the model's training forward follow the plan.

        The model stays the same object: parameters, state_dict, optimisers and hooks on parameters are untouched. In
        eval mode and under no_grad it computes as before. Hooks on submodules act as they did when it was captured.

        Parameters
        ----------
        model : torch.nn.Module
            In training mode, on the device of the plan.

        Returns
        -------
        torch.nn.Module
            The same model.

        Raises
        ------
        MemschedError
            The model has a plan already, or is not the model of the plan.
        """
        if "forward" in model.__dict__:
            raise MemschedError(
                "the model has a plan already, or another forward of its own; call remove() on it first"
            )
        device = only_device(model, (), {})
        if device.type != self.device.type:
            raise MemschedError(
                f"the plan is for {self.device.type} and the model is on {device}; move the model there"
            )
        self.device = device
        model.forward = self._planned(model, lanes_on(self.device))
        self._applied.add(model)
        return model

    def remove(self) -> None:
        """Give the models to which the plan was applied their own forward back."""
        for model in list(self._applied):
            model.__dict__.pop("forward", None)
        self._applied.clear()

    def verify(self, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Timeline:
        """Compare a planned step with a plain one: results, gradients, buffers and random numbers, bit for bit.

        On CUDA, tensors that differ between two plain steps are left out: atomic additions make them differ. On the CPU
        all count, and the step runs with all copies at the earliest and at the latest legal moment, and with NaN in
        memory that holds nothing. The model is left as it was. The plain step must fit the device.

        Parameters
        ----------
        model, args, kwargs
            As they were planned; the plan may be applied or not.

        Returns
        -------
        Timeline
            Of the last planned step, measured.

        Raises
        ------
        MemschedError
            Naming the first tensor that differs, or the bytes that exceed the budget.
        """
        device = self.device
        with untouched(model, device, (args, kwargs)), standing_in(model, None):
            expected = trial_step(model, model, args, kwargs, device)
        if device.type == "cuda":  # some of its kernels add in any order
            with untouched(model, device, (args, kwargs)), standing_in(model, None):
                expected = expected.without_noise(trial_step(model, model, args, kwargs, device))
        measured = None
        for name, lanes in trial_lanes(device).items():
            found, recorder = self._trial(model, args, kwargs, lanes, counting=True)
            different = first_difference(expected, found)
            if different is not None:
                raise MemschedError(
                    f"the planned step changes the {different} (copies {name}): either the forward depends on what is "
                    "no tensor, such as Python's random, or this is a bug to report"
                )
            measured = recorder.timeline(self._uncounted())
        assert measured is not None
        if measured.peak_memory > self.result.schedule.budget:
            raise MemschedError(
                f"the step used {measured.peak_memory} bytes of a budget of {self.result.schedule.budget}; "
                "raise reserve=... by the difference and plan again"
            )
        return measured

    def measure(self, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Timeline:
        """Run one planned step and measure it; the model is left as it was.

        Returns
        -------
        Timeline
            As the simulator's, but measured: of every step of the schedule the start and the end, and the bytes that
            the process really held. Where the caller's loss runs stands `loss`.
        """
        timed = self._trial(model, args, kwargs, lanes_on(self.device), counting=False)[1]
        counted = self._trial(model, args, kwargs, lanes_on(self.device), counting=True)[1]
        return timed.timeline(self._uncounted(), counted)

    def _trial(
        self,
        model: torch.nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        lanes: Lanes,
        counting: bool,
    ) -> tuple[Step, StepRecorder]:
        """One planned step, and the record of it."""
        if not model.training:
            raise InvalidInputError("the model is in eval mode; call model.train(): plans are for training steps")
        planned = self._planned(model, lanes)
        meter = Meter() if counting and self.device.type != "cuda" else None
        recorder = StepRecorder(planned.script, lanes, meter, self.device)
        planned.observe = lambda: recorder
        guarded = counting or not self.REPEATS  # a step that is captured writes to no parameter and no input
        with (
            untouched(model, self.device, (args, kwargs), guarded=guarded),
            standing_in(model, planned),
            meter or contextlib.nullcontext(),
        ):
            step = trial_step(model, model, args, kwargs, self.device)
        return step, recorder

    def _uncounted(self) -> int:
        """Bytes that are there before the step, or that no step shows."""
        kept = self.resident
        return kept.parameters + kept.buffers + kept.inputs + kept.optimizer + kept.reserve

    def _planned(self, model: torch.nn.Module, lanes: Lanes) -> PlannedForward:
        staged = self._captured.get(model)
        stale = staged is None or staged.device != self.device
        # In eval mode nothing is planned; every training step looks again.
        if staged is None or stale or (model.training and staged.premises.changed() is not None):
            staged = self._captured[model] = self._restage(model)
        return PlannedForward(model, staged, self._script(), lanes)

    def _script(self) -> Script:
        return compile_schedule(self.chain, self.result.schedule, self.chain.pieces or [[]] * self.chain.n)

    def _restage(self, model: torch.nn.Module) -> StagedModel:
        """Capture the model for the inputs of the plan, and see that it is the model of the plan."""
        args, kwargs = pytree.tree_unflatten(self._examples(), self.inputs)
        with self.autocast.context():
            staged = stage(model, args, kwargs)
        found = measure_bytes(staged, model, args, kwargs, on_device=True).stages
        names = [one.name for one in staged.stages]
        activations = [0, *(one.activation for one in found)]
        pieces = [[size for size in one.pieces if size] for one in found]
        chain = self.chain
        known = [list(one) for one in chain.pieces or [[]] * chain.n]
        same = self.operations == staged.operations and names == list(chain.names or ())
        if not same or activations != chain.activation.tolist() or pieces != known:
            raise MemschedError(
                f"the plan was made for a model of {chain.n} stages, and this one differs in its stages or in their "
                "bytes; plan this model: memsched.torch.plan(model, ...)"
            )
        return staged

    def _examples(self) -> list[Any]:
        """Leaves of inputs like those of the plan; those that were one tensor are."""
        examples, made, which = [], dict[int, Any](), iter(self.which)
        for leaf in self.leaves:
            if leaf.dtype is None:
                examples.append(leaf.value)
            else:
                number = next(which)
                examples.append(made.setdefault(number, leaf.example(self.device)))
        return examples

    def check(self, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> str | None:
        """One step of a model as planned against a plain one: the first thing that differs, in words, or None.

        A part of `verify`: copies happen at any time, bytes are not counted, and where the plain step does not fit the
        device, what it saves waits on the host.
        """
        problem = self.result.problem
        return difference(
            model,
            self._planned(model, lanes_on(self.device)),
            args,
            kwargs,
            self.device,
            plain_fits=self.device.type != "cuda" or peak_memory(problem) <= self.result.schedule.budget,
            own=not self.REPEATS,
        )

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON document, memsched-torch-plan/1."""
        return {
            "format": FORMAT,
            "kind": self.KIND,
            "result": self.result.to_json(),
            "resident": self.resident.parts(),
            "inputs": nesting_to_json(self.inputs),
            "leaves": _leaves_to_json(self.leaves, self.which),
            "autocast": {
                "device_type": self.autocast.device_type,
                "enabled": self.autocast.enabled,
                "dtype": str(self.autocast.dtype).removeprefix("torch."),
            },
            "device": str(self.device),
            "times": self.times,
            "operations": list(self.operations),
        }

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON. `load` reads it, on this machine or another with the same kind of device."""
        write_document(path, self.to_json())

    @classmethod
    def load(cls, source: Source) -> TorchPlan:
        """Read what `save` wrote.

        Raises
        ------
        InvalidInputError
            It is not a plan, or one of another version.
        """
        document = read_document(source, FORMAT)
        kinds: list[type[TorchPlan]] = [TorchPlan, *TorchPlan.__subclasses__()]
        kind = next((kind for kind in kinds if document.get("kind") == kind.KIND), None)
        if kind is None:
            known = ", ".join(repr(kind.KIND) for kind in kinds)
            raise InvalidInputError(f"the plan has the kind {document.get('kind')!r}; this version knows {known}")
        check_keys(document, FORMAT, kind.KEYS)
        try:
            return kind(**kind._fields(document))
        except MemschedError:
            raise
        except (
            AssertionError,
            AttributeError,
            LookupError,
            OverflowError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            raise InvalidInputError(
                f"the plan cannot be read ({type(error).__name__}: {error}); is it damaged?"
            ) from error

    @classmethod
    def _fields(cls, document: Document) -> dict[str, Any]:
        """The arguments of the constructor, from a document whose keys are checked."""
        autocast, result = document["autocast"], document["result"]
        if not isinstance(result, dict):  # a string would be the path of another file
            raise InvalidInputError(f"result of the plan is {checks.shown(result)}; it must be an object")
        resident = {
            key: checks.count(f"{key} of the resident bytes", value, 0, 2**62)
            for key, value in document["resident"].items()
        }
        inputs, leaves = nesting_from_json(document["inputs"]), tuple(map(Leaf.from_json, document["leaves"]))
        if inputs.num_leaves != len(leaves):
            raise InvalidInputError(
                f"inputs of the plan have {inputs.num_leaves} leaves, and leaves describes {len(leaves)}"
            )
        return {
            "result": Result.from_json(result),
            "resident": Resident(**resident),
            "inputs": inputs,
            "leaves": leaves,
            "which": _which(document["leaves"]),
            "autocast": Autocast(
                device_type=checks.text("device_type of the plan's autocast", autocast["device_type"]),
                enabled=checks.flag("enabled of the plan's autocast", autocast["enabled"]),
                dtype=dtype_named("dtype of the plan's autocast", autocast["dtype"]),
            ),
            "device": torch.device(document["device"]),
            "times": checks.text("times of the plan", document["times"]),
            "operations": tuple(checks.text("an operation of the plan", one) for one in document["operations"]),
        }


def _leaves_to_json(leaves: tuple[Leaf, ...], which: tuple[int, ...]) -> list[dict[str, Any]]:
    """One object a leaf; `same_as` names an earlier leaf that is the same tensor."""
    documents, numbers, first = [], iter(which), dict[int, int]()
    for position, leaf in enumerate(leaves):
        document = leaf.to_json()
        if leaf.dtype is not None:
            same = first.setdefault(next(numbers), position)
            if same != position:
                document["same_as"] = same
        documents.append(document)
    return documents


def _which(documents: list[dict[str, Any]]) -> tuple[int, ...]:
    """Of each leaf that is a tensor, which of the distinct tensors it is."""
    numbers: dict[int, int] = {}
    for position, document in enumerate(documents):
        if "value" not in document:
            same = document.get("same_as", position)
            if same != position and (checks.count("same_as of an input", same, 0, position) not in numbers):
                raise InvalidInputError(f"same_as of an input is {same}, which is no tensor among the inputs before it")
            numbers[position] = numbers.get(same, len(set(numbers.values())))
    return tuple(numbers.values())
