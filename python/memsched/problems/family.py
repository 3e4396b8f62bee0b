"""GraphFamily: the same training step at any batch size."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from memsched import _core
from memsched._core import Graph
from memsched.errors import InvalidInputError, shown
from memsched.support import checks
from memsched.support.documents import Document, Saved, Source, check_keys, read_document, read_graph
from memsched.support.views import Shown

if TYPE_CHECKING:
    from typing_extensions import Self

_MOST_SUMS = 5 * 10**7  # full batch times stored batches; above, the smallest batch stands for all: it needs no more
_FORMAT = "memsched-family/1"


def count_rounds(rounds: Iterable[tuple[int, int]]) -> int:
    """How many rounds there are, from pairs (batch, times)."""
    return sum(times for _, times in rounds)


def can_split(family: GraphFamily) -> bool:
    """Whether the full batch may be split into several rounds."""
    return family.batch > 1 if family.batches is None else family.smallest.batch < family.batch


class GraphFamily(Saved, Shown):
    """A function from batch sizes to graphs with the same ops, tensors and algorithms; only numbers change.

    Planners that split a batch into rounds take it instead of a graph.

    Families are equal if their names, batches and functions are, or for saved families their graphs. A pickle of a
    family holds its function, so that must be one that pickle takes, such as one at the top of a module. If it is not,
    save the graphs with `to_json`.

    Parameters
    ----------
    make : callable
        Takes a batch size and returns a Graph of that batch.
    batch : int
        The full batch, which a training step must process.
    name : str, optional
        By default the name of the graph at the full batch.

    Raises
    ------
    InvalidInputError
        `make` does not return a Graph, or returns one that does not match the graph at the full batch.

    Examples
    --------
    >>> import memsched as ms
    >>> def make(batch: int) -> ms.Graph:
    ...     tensors = [{"name": "x", "size": 4 * batch, "role": "input"}]
    ...     choices = [{"alg": "default", "time": 0.5 * batch, "workspace": 0}]
    ...     ops = [{"name": "F", "phase": "fwd", "reads": ["x"], "writes": [], "choices": choices}]
    ...     return ms.Graph(tensors, ops, name="one op", batch=batch)
    >>> family = ms.GraphFamily(make, 32)
    >>> family.at(8).tensors[0]["size"]
    32
    """

    def __init__(self, make: Callable[[int], Graph], batch: int, *, name: str | None = None) -> None:
        if not callable(make):
            raise InvalidInputError(f"make is {shown(make)}; it must be a function from a batch size to a Graph")
        self._make = make
        self._batches: tuple[int, ...] | None = None
        self._graphs: dict[int, Graph] = {}
        self._made: list[int] = []  # the batches of these graphs, sorted
        self._batch = checks.count("batch", batch, 1, 2**63 - 1)
        self._name = self.graph.name if name is None else checks.text("name", name)

    @property
    def batch(self) -> int:
        """The full batch."""
        return self._batch

    @property
    def name(self) -> str:
        """By default the name of the graph at the full batch."""
        return self._name

    @property
    def batches(self) -> tuple[int, ...] | None:
        """The batches that exist; None: all up to the full batch."""
        return self._batches

    @property
    def graph(self) -> Graph:
        """The graph at the full batch."""
        return self.at(self.batch)

    @property
    def smallest(self) -> Graph:
        """The graph at the smallest batch up to which rounds make up the full batch.

        Of a saved family whose full batch, times the number of its batches, is above 5 x 10^7: that at its smallest.
        """
        first = 1 if self._batches is None else self._batches[0]
        if self._batches is None or self.batch % first == 0 or self.batch * len(self._batches) > _MOST_SUMS:
            return self.at(first)
        sums = 1  # bit n: rounds of these batches make up n
        for batch in self._batches:
            step = batch
            while not sums >> self.batch & 1 and step <= self.batch:
                sums |= sums << step & (2 << self.batch) - 1
                step *= 2
            if sums >> self.batch & 1:
                return self.at(batch)
        return self.graph

    def at(self, batch: int) -> Graph:
        """The graph at a batch size, from 1 to the full batch."""
        batch = checks.count("batch", batch, 1, self.batch)
        if batch not in self._graphs:
            made = self._make(batch)
            self._check(batch, made)
            self._graphs[batch] = made
            insort(self._made, batch)
        return self._graphs[batch]

    def _check(self, batch: int, made: Graph) -> None:
        if not isinstance(made, Graph) or made.batch != batch:
            found = f"a graph of batch {made.batch}" if isinstance(made, Graph) else repr(made)
            raise InvalidInputError(f"make({batch}) returned {found}; it must return a Graph of that batch")
        if batch == self.batch:
            return
        full = self.graph
        if not _core.same_shape(made, full):
            raise InvalidInputError(
                f"the graph of batch {batch} has other tensors, ops or algorithms than that of batch {self.batch}; "
                "only sizes, times and workspaces may change with the batch"
            )
        place = bisect_left(self._made, batch)
        for other in self._made[max(0, place - 1) : place + 1]:  # the nearest below and above
            small, large = sorted((batch, other))
            name = _core.shrinks(self._graphs.get(small, made), self._graphs.get(large, made))
            if name:
                raise InvalidInputError(
                    f"{name!r} needs more bytes at batch {small} than at {large}; "
                    "sizes and workspaces must not shrink as the batch grows"
                )

    def __repr__(self) -> str:
        return f"GraphFamily(name={self.name!r}, batch={self.batch}, ops={len(self.graph.ops)})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GraphFamily):
            return NotImplemented
        if (self.name, self.batch, self.batches) != (other.name, other.batch, other.batches):
            return False
        return bool(self._make == other._make) if self.batches is None else self._graphs == other._graphs

    def __hash__(self) -> int:
        return hash((self.name, self.batch))

    def __copy__(self) -> GraphFamily:
        return self

    def __deepcopy__(self, memo: object) -> GraphFamily:
        return self

    def __reduce__(self) -> Any:
        """With its function, or with all the graphs it was saved with."""
        if self.batches is None:
            return partial(GraphFamily, name=self.name), (self._make, self.batch)
        return GraphFamily.from_json, (self.to_json(),)

    def at_most(self, batch: int) -> GraphFamily:
        """The family of a smaller batch."""
        if self.batches is None:
            return GraphFamily(self.at, batch, name=self.name)
        graphs = [self.at(one).to_json() for one in {*self.batches, batch} if one <= batch]
        return GraphFamily.from_json({"format": _FORMAT, "name": self.name, "batch": batch, "graphs": graphs})

    def to_json(self, batches: Iterable[int] = ()) -> Document:
        """The form `memsched-family/1`: the graphs at the full batch, at 1 if it exists, and at the given batches.

        Of a family that was read from a file: all that it has.
        """
        if not checks.is_list(batches):
            raise InvalidInputError(f"batches is {shown(batches)}; it must be a list of batch sizes")
        known = {self.at(batch).batch for batch in (self.batch, *(self.batches or ()), *batches)}
        with suppress(InvalidInputError):
            known.add(self.at(1).batch)
        graphs = [self.at(batch).to_json() for batch in sorted(known, reverse=True)]
        return {"format": _FORMAT, "name": self.name, "batch": self.batch, "graphs": graphs}

    @classmethod
    def from_json(cls, source: Source) -> Self:
        """Read `memsched-family/1` from a dict, a JSON text or the path of a file. It has only the stored graphs."""
        document = read_document(source, _FORMAT)
        check_keys(document, "the family", ("name", "batch", "graphs"))
        if not isinstance(document["graphs"], list) or not isinstance(document["name"], str):
            raise InvalidInputError("the family must have a name and a list of graphs")
        graphs: dict[int, Graph] = {}
        for k, one in enumerate(document["graphs"]):
            if not isinstance(one, dict):  # a string would be the path of another file
                raise InvalidInputError(f"graphs[{k}] of the family is {shown(one)}; it must be an object")
            graph = read_graph(one)
            if graph.batch in graphs:
                raise InvalidInputError(
                    f"graphs[{k}] of the family has the batch {graph.batch}, as another has; drop one"
                )
            graphs[graph.batch] = graph

        def stored(batch: int) -> Graph:
            if batch not in graphs:
                known = ", ".join(map(str, sorted(graphs)))
                raise InvalidInputError(
                    f"this family was saved with its graphs at batch {known}, not {batch}; to_json(batches) saves more"
                )
            return graphs[batch]

        family = cls(stored, document["batch"], name=document["name"])
        for batch in (family.batch, *graphs):  # all stored batches, so that the family can be written again
            family.at(batch)
        family._batches = tuple(sorted(graphs))
        return family
