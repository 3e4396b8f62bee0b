"""Plans from classes, as PoocH and others make them: every feature map is kept, swapped or recomputed.

Slow and plain. A feature map is an activation that a backward op reads. The forward drops what is not kept. The
backward brings back, by fetching or by running ops again, what each of its ops reads. Fetches are then moved to where a
policy wants them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
Classes = Mapping[str, str]


class DoesNotFitError(Exception):
    """The classes, or the placement of their fetches, do not fit."""


def feature_maps(graph: Json) -> list[str]:
    """Activations with bytes that a backward op reads, in the order in which they are made."""
    wanted = {name for op in graph["ops"] if op["phase"] == "bwd" for name in op["reads"]}
    activations = {tensor["name"] for tensor in graph["tensors"] if tensor["role"] == "activation" and tensor["size"]}
    made = [name for op in graph["ops"] for name in op["writes"]]
    return [name for name in made if name in wanted and name in activations]


def fixed_choices(graph: Json, limit: float) -> dict[str, int]:
    """Of each op the fastest algorithm whose workspace is within a limit, else one with the least workspace."""
    found = {}
    for op in graph["ops"]:
        spaces = [choice["workspace"] for choice in op["choices"]]
        most = max(limit, min(spaces))
        fits = [k for k, space in enumerate(spaces) if space <= most]
        found[op["name"]] = min(fits, key=lambda k: (op["choices"][k]["time"], spaces[k], k))
    return found


class ClassPlan:
    """The steps for some classes.

    Parameters
    ----------
    graph : document
    classes : mapping of feature map to "keep", "swap" or "recompute"
    budget : bytes, resident included
    policy : "demand", "prev", "prevconv", "window:N" or "eager"
    choices : mapping of op to the index of its algorithm
    """

    def __init__(self, graph: Json, classes: Classes, budget: int, policy: str, choices: Mapping[str, int]) -> None:
        self.graph, self.classes, self.choices = graph, classes, choices
        self.cap = budget - graph.get("resident", 0)
        self.size = {tensor["name"]: tensor["size"] for tensor in graph["tensors"]}
        self.role = {tensor["name"]: tensor["role"] for tensor in graph["tensors"]}
        self.ops = {op["name"]: op for op in graph["ops"]}
        self.producer = {name: op["name"] for op in graph["ops"] for name in op["writes"]}
        self.forward = [op for op in graph["ops"] if op["phase"] == "fwd"]
        self.backward = [op for op in graph["ops"] if op["phase"] == "bwd"]
        self.here = {name for name, role in self.role.items() if role in ("input", "weight")}
        read = {name for op in graph["ops"] for name in op["reads"]}
        again = "recompute" in classes.values()  # then inputs may be read at any time
        self.staying = {
            name
            for name, role in self.role.items()
            if role == "weight" or name not in read or self.size[name] == 0 or (again and role == "input")
        }
        self.live = sum(self.size[name] for name in self.here)
        self.host: set[str] = set()
        self.locks: dict[str, int] = {}
        self.events: list[tuple[str, str]] = []  # ("run", op), ("offload" | "free" | "fetch", tensor)
        self.now = 0  # position of the present backward op
        self._fits(0)
        self._forward()
        for position, op in enumerate(self.backward):
            self.now = position
            self._run(op["name"])
            self._free_what_is_done()
        self.steps = self._placed(policy)

    def _workspace(self, op: str) -> int:
        return int(self.ops[op]["choices"][self.choices[op]]["workspace"])

    def _fits(self, more: int) -> None:
        if self.live + more > self.cap:
            raise DoesNotFitError

    def _forward(self) -> None:
        last = {name: op["name"] for op in self.forward for name in (*op["reads"], *op["writes"])}
        wanted = {name for op in self.backward for name in op["reads"]}
        for op in self.forward:
            self.events.append(("run", op["name"]))
            self.here.update(op["writes"])
            self.live += sum(self.size[name] for name in op["writes"])
            self._fits(self._workspace(op["name"]))
            for name in dict.fromkeys((*op["reads"], *op["writes"])):
                if last[name] != op["name"] or name not in self.here:
                    continue
                kind = self.classes.get(name, "keep")
                if kind == "swap":
                    self.events.append(("offload", name))
                    self.host.add(name)
                    self._drop(name)
                elif kind == "recompute" or (name not in wanted and name not in self.staying):
                    self._drop(name)

    def _drop(self, name: str) -> None:
        self.events.append(("free", name))
        self.here.remove(name)
        self.live -= self.size[name]

    def _next_use(self, name: str) -> int:
        uses = [k for k in range(self.now, len(self.backward)) if name in self.backward[k]["reads"]]
        return uses[0] if uses else len(self.backward)

    def _room(self, more: int) -> None:
        while self.live + more > self.cap:
            loose = [
                name for name in self.here if self.classes.get(name, "keep") != "keep" and not self.locks.get(name)
            ]
            if not loose:
                raise DoesNotFitError
            order = {tensor["name"]: k for k, tensor in enumerate(self.graph["tensors"])}
            self._drop(max(loose, key=lambda name: (self._next_use(name), self.size[name], -order[name])))

    def _ensure(self, names: list[str]) -> None:
        again = [name for name in names if self.classes.get(name, "keep") == "recompute" or name not in self.classes]
        again.sort(key=lambda name: name in self.here)  # an op that runs again writes all its outputs anew
        for name in (*again, *(name for name in names if name not in again)):
            if name not in self.here:
                if name in self.host:
                    self._room(self.size[name])
                    self.events.append(("fetch", name))
                    self.here.add(name)
                    self.live += self.size[name]
                else:
                    self._run(self.producer[name])
            self.locks[name] = self.locks.get(name, 0) + 1

    def _run(self, op: str) -> None:
        if self.ops[op].get("once") and ("run", op) in self.events:
            raise DoesNotFitError
        reads = list(dict.fromkeys(self.ops[op]["reads"]))
        self._ensure(reads)
        writes = self.ops[op]["writes"]
        for name in [name for name in writes if name in self.here]:  # another output of an op that runs again
            if self.locks.get(name):
                raise DoesNotFitError
            self._drop(name)
        made = sum(self.size[name] for name in writes)
        self._room(made + self._workspace(op))
        self.events.append(("run", op))
        self.here.update(writes)
        self.live += made
        for name in reads:
            self.locks[name] -= 1

    def _free_what_is_done(self) -> None:
        later = {name for op in self.backward[self.now + 1 :] for name in op["reads"]}
        for tensor in self.graph["tensors"]:
            name = tensor["name"]
            if name in self.here and name not in later and name not in self.staying:
                self._drop(name)

    # Fetches

    def _placed(self, policy: str) -> list[Json]:
        """The steps, each fetch listed right before the run at the position that the policy gives it."""
        runs: list[str] = []
        groups: list[list[tuple[str, str]]] = [[]]  # what is listed before each run, fetches apart
        fetches: list[tuple[str, int]] = []  # tensor, the run that it is attributed to
        use: list[int] = []
        freed: dict[str, int] = {}  # the run before which a tensor was last dropped
        earliest: list[int] = []
        waiting: list[str] = []
        live = sum(size for name, size in self.size.items() if self.role[name] in ("input", "weight"))
        for verb, name in self.events:
            if verb == "run":
                for one in [one for one in waiting if one in self.ops[name]["reads"]]:
                    fetches.append((one, len(runs)))
                    earliest.append(freed.get(one, 0))
                    live += self.size[one]
                    waiting.remove(one)
                live += sum(self.size[one] for one in self.ops[name]["writes"])
                use.append(live + self._workspace(name))
                runs.append(name)
                groups.append([])
            elif verb == "fetch":
                waiting.append(name)
            else:
                if verb == "free":
                    if name in waiting:  # dropped again before anybody read it
                        waiting.remove(name)
                        continue
                    live -= self.size[name]
                    freed[name] = len(runs)
                groups[-1].append((verb, name))
        before: dict[int, list[str]] = {}
        position = 0
        for (name, need), least in zip(fetches, earliest, strict=True):
            position = self._position(policy, name, need, max(position, least), runs, use)
            for q in range(position, need):
                use[q] += self.size[name]
            before.setdefault(position, []).append(name)
        steps: list[Json] = []
        for k, run in enumerate([*runs, None]):
            steps += [{verb: name} for verb, name in groups[k]]
            steps += [{"prefetch": name} for name in before.get(k, [])]
            if run is not None:
                several = len(self.ops[run]["choices"]) > 1
                alg = {"alg": self.ops[run]["choices"][self.choices[run]]["alg"]} if several else {}
                steps.append({"run": run, **alg})
        return steps

    def _position(self, policy: str, name: str, need: int, least: int, runs: list[str], use: list[int]) -> int:
        def fits(position: int) -> bool:
            return all(use[q] + self.size[name] <= self.cap for q in range(position, need))

        if policy == "demand":
            return need
        if policy == "eager":
            position = need
            while position > least and fits(position - 1):
                position -= 1
            return position
        layers = [self.ops[run]["layer"] for run in runs]
        kinds = [self.ops[run]["kind"] for run in runs]
        distance = int(policy.partition(":")[2]) if policy.startswith("window") else 1
        passed: list[int] = []
        for q in range(need - 1, -1, -1):
            if self.ops[runs[q]]["phase"] != "bwd":  # of the forward, or run again
                continue
            if layers[q] == layers[need] or (policy == "prevconv" and kinds[q] != "conv"):
                continue
            if layers[q] not in passed:
                passed.append(layers[q])
            if len(passed) > distance:
                break
        wanted = passed[:distance][-1:] or []
        first = next((q for q in range(need) if layers[q] in wanted and self.ops[runs[q]]["phase"] == "bwd"), None)
        position = need if first is None else max(least, first + 1)  # right after that run: it starts with it
        position = min(position, need)
        if not fits(position):
            raise DoesNotFitError
        return position
