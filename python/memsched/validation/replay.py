"""The list of steps of a plan, gone through without a clock: it is legal and keeps its budget, or is refused.

Once, or three times if the graph has persistent tensors: then the list is repeated without end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NoReturn

from memsched.errors import ScheduleError

Json = Mapping[str, Any]
AT_TIME_0 = -1  # the "step" that brings input and weight tensors
_REPETITIONS = 3  # of a list that is repeated: steps wait for nothing from before the previous one
_FIELDS = {"run": "alg at skip after", "offload": "after", "prefetch": "at after", "free": "", "update": "after"}
_OF_OPS = ("run", "update")  # verbs that name an op; the others name a tensor


@dataclass(slots=True, eq=False)
class Buffer:
    """A tensor or a workspace (name "") on the device from the start of step `born` to the end of `dies`."""

    name: str
    bytes: int
    born: int
    dies: int | None = None
    low: int = 0  # address, in contiguous plans
    touched: list[int] = field(default_factory=list)  # steps that must end before it is freed
    written: int = AT_TIME_0  # the last step that fills or updates it

    def overlaps(self, other: Buffer) -> bool:
        return max(self.low, other.low) < min(self.low + self.bytes, other.low + other.bytes)


@dataclass(slots=True)
class Step:
    """A step that waits for the start of the run `issue` and for the ends of `waits`."""

    verb: str
    name: str
    issue: int
    stream: str = ""
    seconds: float = 0.0
    reads: Sequence[str] = ()
    waits: list[int] = field(default_factory=list)
    births: list[Buffer] = field(default_factory=list)


class Arena:
    """Buffers that do not overlap, sorted by address; a new one can only conflict with its neighbours."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []

    def takes(self, buffer: Buffer) -> bool:
        """Add a buffer if it overlaps none, and return whether it does not. Empty buffers overlap nothing."""
        at = bisect_left(self.buffers, buffer.low, key=attrgetter("low"))
        if any(buffer.overlaps(other) for other in self.buffers[max(0, at - 1) : at + 1]):
            return False
        if buffer.bytes:
            self.buffers.insert(at, buffer)
        return True

    def drop(self, buffer: Buffer) -> None:
        if buffer.bytes:
            del self.buffers[bisect_left(self.buffers, buffer.low, key=attrgetter("low"))]


def told(size: int) -> str:
    """A number of bytes in a unit that can be read, with the bytes where they differ."""
    power = min(max(size.bit_length() - 1, 0) // 10, 5)
    unit = f"{size / 1024**power:.4g} {('', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')[power]}"
    return f"{unit} ({size:,} bytes)" if power else f"{size} byte{'' if size == 1 else 's'}"


def is_natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class Replay:
    """A pass over the list of steps in order, without a clock; `count` steps, and again if `repeated`."""

    def __init__(self, graph: Json, plan: Json, device: Json) -> None:
        self.tensors: dict[str, int] = {tensor["name"]: tensor["size"] for tensor in graph["tensors"]}
        self.ops: dict[str, Json] = {op["name"]: op for op in graph["ops"]}
        self.budget: int = min(plan["budget"], device["memory"])
        self.capacity: int = self.budget - graph.get("resident", 0)
        self.contiguous = plan["memory"] == "contiguous"
        self.rate = {"offload": float(device.get("d2h") or 0), "prefetch": float(device.get("h2d") or 0)}
        self.latency, self.duplex = float(device.get("latency") or 0), bool(device.get("duplex"))
        self.host_memory = device.get("host_memory")
        self.steps: list[Step] = []
        self.buffers: list[Buffer] = []
        self.on_device: dict[str, Buffer] = {}
        self.count = len(plan["steps"])
        self.places = {one["name"]: "device" for one in graph["tensors"] if one["role"] == "persistent"}
        self.repeated = bool(self.places)
        self.places |= self.border(plan.get("border", {}))
        self.due: dict[tuple[str, str], int] = {}  # (op, persistent tensor it reads) -> updates listed before the op
        listed = dict.fromkeys(self.places, 0)
        for op in graph["ops"]:
            self.due |= {(op["name"], name): listed[name] for name in op["reads"] if name in listed}
            for name in op.get("updates", ()):
                listed[name] += 1
        self.on_host: dict[str, int] = {}  # tensor -> the offload or update that made the copy, or AT_TIME_0
        self.on_host |= dict.fromkeys((name for name, place in self.places.items() if place != "device"), AT_TIME_0)
        self.fetched: dict[str, int] = {}  # tensor -> its last prefetch,
        self.sent: dict[str, int] = {}  # its last offload,
        self.used: dict[str, int] = {}  # and the last update that reads its host copy
        self.last_run = AT_TIME_0
        self.arena = Arena()  # contents of the device, in contiguous plans
        self.live = self.peak = 0  # bytes in list order, without resident
        for tensor in graph["tensors"]:
            role, place = tensor["role"], self.places.get(tensor["name"])
            if role in ("input", "weight") or place in ("device", "both"):  # packed from address 0
                self.hold(buffer := Buffer(tensor["name"], tensor["size"], AT_TIME_0, low=self.live))
                self.arena.takes(buffer)
        if self.live > self.capacity:
            need = self.live - self.capacity + self.budget
            raise ScheduleError(f"At time 0 there are {told(need)}, and the budget is {told(self.budget)}; raise it.")
        for _ in range(_REPETITIONS if self.repeated else 1):
            self.play(plan["steps"])

    def border(self, given: Any) -> Mapping[str, str]:
        """Check where the plan says that persistent tensors are before and after its list."""
        if not isinstance(given, Mapping):
            raise ScheduleError(f"border is {given!r}; give a dict of persistent tensors.")
        for name, place in given.items():
            if name not in self.places or place not in ("device", "host", "both"):
                text = f"border has {name!r}: {place!r}; give persistent tensors, each device, host or both"
                raise ScheduleError(f"{text}.")
        return given

    def play(self, steps: Sequence[Any]) -> None:
        """Go through the list once: all ops run, and all tensors end where they began."""
        began = set(self.on_device)
        self.runs: dict[str, list[int]] = {}
        self.updates = dict.fromkeys(self.places, 0)
        self.on_host = {name: by for name, by in self.on_host.items() if self.places.get(name, "device") != "device"}
        self.kept = set(self.on_host)  # have bytes on the host
        self.host_bytes = sum(self.tensors[name] for name in self.kept)
        self.check_host()
        for raw in steps:
            self.add(raw)
        for name in self.ops:
            if name not in self.runs:
                raise ScheduleError(f"Op {name!r} never runs; add a run step for it.")
        if not self.repeated:
            return
        for name in sorted(began ^ set(self.on_device)):
            remedy = "prefetch it before the end" if name in began else "free it before the end"
            raise ScheduleError(f"The list is repeated, but {name!r} does not end where it began; {remedy}.")
        for name, place in self.places.items():
            if place != "device" and name not in self.on_host:
                raise ScheduleError(f"{name!r} begins on the host and ends without a copy there; offload it.")

    def check_host(self) -> None:
        """Refuse more bytes on the host than it has."""
        held = self.host_bytes
        if self.host_memory is not None and held > self.host_memory:
            text = f"host copies take {told(held)}, host_memory is {told(self.host_memory)}; offload less"
            if not self.steps:
                raise ScheduleError(f"At time 0 {text}.")
            self.fail(f"{text}.")

    def fail(self, text: str) -> NoReturn:
        index, step = (len(self.steps) - 1) % self.count, self.steps[-1]
        raise ScheduleError(f"Step {index} ({step.verb} {step.name}): {text}", index)

    def hold(self, buffer: Buffer) -> None:
        self.buffers.append(buffer)
        self.live += buffer.bytes
        self.peak = max(self.peak, self.live)
        if buffer.name:
            self.on_device[buffer.name] = buffer

    def add(self, raw: Any) -> None:
        """Check the fields that all steps share, then apply the step."""
        index, listed = len(self.steps), len(self.steps) % self.count
        verbs = [verb for verb in _FIELDS if verb in raw] if isinstance(raw, Mapping) else []
        if len(verbs) != 1:
            found = " and ".join(verbs) or "no verb"
            raise ScheduleError(f"Step {listed} has {found}; give exactly one of {', '.join(_FIELDS)}.", listed)
        verb, name = verbs[0], raw[verbs[0]]
        self.steps.append(Step(verb, str(name), self.last_run))
        if not isinstance(name, str) or name not in (self.ops if verb in _OF_OPS else self.tensors):
            kind = "op" if verb in _OF_OPS else "tensor"
            self.fail(f"{verb} is {name!r}, which is no {kind} of the graph; give the name of one.")
        for key in raw:
            if key != verb and key not in _FIELDS[verb].split():
                self.fail(f"field {key!r} is unknown; drop it, {verb} takes {_FIELDS[verb] or 'no other'}.")
        after = raw.get("after", [])
        if not isinstance(after, (list, tuple)) or not all(is_natural(at) and at < listed for at in after):
            self.fail(f"after is {after!r}; give a list of indices of earlier steps, 0 to {listed - 1}.")
        if "at" in raw and not self.contiguous:
            self.fail('at is given in a fluid plan; drop it or set "memory": "contiguous".')
        self.steps[-1].waits.extend(index - listed + at for at in after)
        if verb == "run":
            self.run(index, name, raw)
        elif verb == "free":
            self.free(index, name)
        elif verb == "update":
            self.update_there(index, name)
        else:
            self.transfer(index, name, raw)

    def run(self, index: int, name: str, raw: Json) -> None:
        op, step = self.ops[name], self.steps[index]
        if op.get("once") and name in self.runs:
            self.fail(f"the op may run once only and did at step {self.runs[name][0]}; drop one of the two.")
        choices = {choice["alg"]: choice for choice in op["choices"]}
        alg = raw.get("alg", next(iter(choices)) if len(choices) == 1 else None)
        if not isinstance(alg, str) or alg not in choices:
            self.fail(f"alg is {raw.get('alg', 'missing')!r}; give one of {', '.join(choices)}.")
        skip, tape = raw.get("skip", []), op.get("tape", [])
        if not isinstance(skip, (list, tuple)) or (skip and sorted(map(str, skip)) != sorted(tape)):
            self.fail(f"skip is {skip!r}; skip nothing or the whole tape of the op, {list(tape)!r}.")
        for tensor in dict.fromkeys(op["reads"]):
            self.touch(index, tensor)
            if tensor in self.places:
                self.check_version(name, tensor)
        for tensor in op.get("updates", ()):
            self.update(index, tensor)
        births = [Buffer(name, self.tensors[name], index) for name in op["writes"] if name not in skip]
        for buffer in births:
            if buffer.name in self.on_device:
                self.fail(f"its output {buffer.name!r} is already on the device; free it first.")
        workspace: int = choices[alg]["workspace"]
        workspace = op.get("skip_workspace", workspace) if skip else workspace
        scratch = Buffer("", workspace, index, dies=index)
        self.allocate(index, [*births, scratch], raw.get("at", {}))
        self.live -= workspace
        if self.contiguous:
            self.arena.drop(scratch)
        step.reads, step.stream, step.seconds = op["reads"], "compute", float(choices[alg]["time"])
        self.runs.setdefault(name, []).append(index)
        self.last_run = index

    def check_version(self, op: str, tensor: str) -> None:
        """Refuse a run that reads a persistent tensor before or after other updates than the graph lists before it."""
        due = self.due[op, tensor]
        if self.updates[tensor] != due:
            text = f"it reads {tensor!r} after {self.updates[tensor]} updates, in the graph it comes after {due}"
            self.fail(f"{text}; keep the order of reads and updates.")

    def update(self, index: int, tensor: str) -> None:
        """Write a tensor in place: once its copy to the host is over, which is stale from then on."""
        buffer = self.on_device[tensor]
        self.steps[index].waits += (other for other in buffer.touched if other != index)
        buffer.written = index
        self.on_host.pop(tensor, None)
        self.updates[tensor] += 1

    def update_there(self, index: int, name: str) -> None:
        """Run an op on the host: on complete copies there, once nobody else reads or writes those that it changes."""
        op, step = self.ops[name], self.steps[index]
        if op.get("host_time") is None:
            self.fail("the op has no host_time; run it on the device.")
        if name in self.runs:
            self.fail(f"the op may run once only and did at step {self.runs[name][0]}; drop one of the two.")
        for tensor in dict.fromkeys(op["reads"]):
            if tensor not in self.on_host:
                self.fail(f"it needs {tensor!r}, of which the host has no copy, or a stale one; offload it before.")
            if tensor in self.places:
                self.check_version(name, tensor)
            step.waits += (self.on_host[tensor],) if self.on_host[tensor] != AT_TIME_0 else ()
            self.used[tensor] = index
        for tensor in (*op["updates"], *op["writes"]):
            if tensor in self.on_device:
                self.fail(f"it changes {tensor!r}, whose copy on the device would be stale; free that before.")
            step.waits += (others[tensor] for others in (self.fetched, self.sent) if tensor in others)
            self.on_host[tensor] = index
        self.updates.update({tensor: self.updates[tensor] + 1 for tensor in op["updates"]})
        step.stream, step.seconds = "host", float(op["host_time"])
        self.runs.setdefault(name, []).append(index)

    def transfer(self, index: int, name: str, raw: Json) -> None:
        step, size = self.steps[index], self.tensors[name]
        if self.rate[step.verb] == 0:
            self.fail("the bandwidth of the device in this direction is 0; raise it or drop the transfer.")
        step.seconds = self.latency + size / self.rate[step.verb]
        step.stream = step.verb if self.duplex else "link"
        if step.verb == "offload":
            self.touch(index, name)
            step.reads = [name]
            if name not in self.on_host:
                self.on_host[name] = index
                users = (self.fetched, self.used)  # of the copy that is replaced
                step.waits += (others[name] for others in users if name in others)
            self.sent[name] = index
            if name not in self.kept:
                self.kept.add(name)
                self.host_bytes += size
                self.check_host()
            return
        if name not in self.on_host:
            self.fail(f"tensor {name!r} has no host copy; list an offload of it earlier.")
        if name in self.on_device:
            self.fail(f"tensor {name!r} is already on the device; free it first or drop the prefetch.")
        if self.on_host[name] != AT_TIME_0:
            step.waits.append(self.on_host[name])
        self.fetched[name] = index
        self.allocate(index, [Buffer(name, size, index)], {name: raw["at"]} if "at" in raw else {})

    def free(self, index: int, name: str) -> None:
        if name not in self.on_device:
            self.fail(f"tensor {name!r} is not on the device; drop the free.")
        buffer = self.on_device.pop(name)
        buffer.dies = index
        self.live -= buffer.bytes
        if self.contiguous:
            self.arena.drop(buffer)
        self.steps[index].waits += buffer.touched

    def touch(self, index: int, name: str) -> None:
        """Use a tensor on the device: wait until it is complete, and hold its memory until the step ends."""
        if name not in self.on_device:
            self.fail(f"it needs {name!r}, which is not on the device; prefetch it or run its op before.")
        buffer = self.on_device[name]
        waits = self.steps[index].waits
        if buffer.born != AT_TIME_0:
            waits.append(buffer.born)
        if buffer.written not in (AT_TIME_0, buffer.born):  # given times may be rounded apart
            waits.append(buffer.written)
        buffer.touched.append(index)

    def allocate(self, index: int, births: list[Buffer], at: Any) -> None:
        """Allocate the buffers that this step creates; empty ones need no address."""
        need, room = sum(buffer.bytes for buffer in births), self.capacity - self.live
        if need > room and not self.contiguous:
            text = f"it needs {told(need)}, but of the budget of {told(self.budget)} only {told(room)} are left"
            self.fail(f"{text}; free something before it or raise the budget by {told(need - room)}.")
        names = [buffer.name for buffer in births]
        if not isinstance(at, Mapping) or not set(at) <= set(names):
            self.fail(f"at is {at!r}; give addresses of {names!r} and of nothing else.")
        for buffer in births:
            low = at.get(buffer.name, None if buffer.bytes and self.contiguous else 0)
            top = self.capacity - buffer.bytes
            if self.contiguous and (not is_natural(low) or low > top):
                self.fail(f"the address at[{buffer.name!r}] is {low!r}; give a whole number from 0 to {top}.")
            buffer.low = low
            if self.contiguous and not self.arena.takes(buffer):
                other = next(one for one in self.on_device.values() if buffer.overlaps(one))
                text = f"{buffer.bytes} bytes at {low} overlap {other.bytes} bytes at {other.low}"
                self.fail(f"{buffer.name!r}: {text} ({other.name!r}); move it or free the other before.")
            buffer.touched.append(index)
            buffer.written = index
            self.hold(buffer)
        self.steps[index].births = births
