"""Problems by name, as command lines and files give them, and the link that a profile was made with."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from pathlib import Path

from memsched import profiles
from memsched._core import Graph
from memsched.errors import InvalidInputError, shown
from memsched.problems.machines import DEFAULT_LINK, DEFAULT_LINK_FROM
from memsched.problems.problem import Problem, name_of, problem_from, profile_link
from memsched.support.arguments import tell
from memsched.support.documents import read_document
from memsched.support.formats import format_bandwidth

PROBLEMS = ("memsched-chain/1", "memsched-graph/1", "memsched-family/1")
_GPU = "v100"  # of a network by formula that names none
_MODEL = re.compile(r"[\w./-]+(?<!\.onnx):[a-z_][\w./-]*(\?.*)?", re.IGNORECASE)  # as `memsched profile` takes it


def name_in(source: str) -> str | None:
    """The name of a shipped problem or of a network by formula, in one spelling; None if it is the path of a file."""
    if source.startswith("analytic:"):
        network, batch, gpu = _formula(source)
        return f"analytic:{network}:{batch}" + ("" if gpu == _GPU else f":{gpu}")
    return source if source.startswith("graph:") or source in profiles.graph_names() else None


def named_problem(source: str) -> Problem | None:
    """The problem of a name graph:NAME (a shipped graph) or analytic:NETWORK:BATCH[:GPU] (by formula); else None.

    The prefix graph: may be left out where no chain has the name.

    Raises
    ------
    InvalidInputError
        Nothing has the name, and it is no path: similar names are told, or what makes a chain of a model.
    """
    if source.startswith("analytic:"):
        return profiles.analytic(*_formula(source))
    if source.startswith("graph:"):
        return profiles.load_graph(source.removeprefix("graph:"))
    if source in profiles.names() or (source not in profiles.graph_names() and _may_be_file(source)):
        return None
    if _MODEL.fullmatch(source):
        makes = f"`memsched profile --model {shlex.quote(source)} -o chain.json` makes a chain of a model"
        raise InvalidInputError(f"no profile is named {shown(source)}; {makes}")
    return profiles.load_graph(source)


def _may_be_file(source: str) -> bool:
    """Whether a problem is read from a file, or from the standard input."""
    model = _MODEL.fullmatch(source)
    return source == "-" or os.path.exists(source) or bool(Path(source).suffix and not model)


def _formula(source: str) -> tuple[str, int, str]:
    """The network, the batch and the GPU of analytic:NETWORK:BATCH[:GPU]."""
    _, network, *numbers = source.split(":")
    if len(numbers) not in (1, 2) or not numbers[0].isascii() or not numbers[0].isdigit() or len(numbers[0]) > 18:
        raise InvalidInputError(
            f"the problem is {shown(source)}; a network by formula is analytic:NETWORK:BATCH[:GPU], "
            "such as analytic:resnet50:512 or analytic:vgg16:256:k40m"
        )
    return network, int(numbers[0]), (numbers[1:] or [_GPU])[0].lower()


def imported_problem(source: str) -> Problem | None:
    """The chain of a .csv or .tsv file, or the graph of an .onnx file, perhaps with dimensions; None of others."""
    path = path_in(source)
    ending = Path(path).suffix.lower()
    if ending in (".csv", ".tsv"):
        from memsched.readers.csv_files import chain_from_csv

        return chain_from_csv(path)
    if ending == ".onnx":
        from memsched.readers.onnx.model import graph_from_onnx

        dims = [_dimension(part, source) for part in _parts(source)]
        twice = [name for name, count in Counter(name for name, _ in dims).items() if count > 1]
        if twice:
            raise InvalidInputError(f"the problem is {shown(source)}, which gives dimension '{twice[0]}' twice")
        return graph_from_onnx(path, dims=dict(dims))
    return None


def path_in(source: str) -> str:
    """The path of the file of a problem, without the dimensions of "model.onnx?batch=8"."""
    return source.partition("?")[0] if _parts(source) else source


def _parts(source: str) -> list[str]:
    """What is said of the dimensions of an .onnx file."""
    path, mark, said = source.partition("?")
    return said.split("&") if mark and path.lower().endswith(".onnx") and not os.path.exists(source) else []


def _dimension(part: str, source: str) -> tuple[str, int]:
    """The name and the size of a dimension, as in "batch=8"."""
    name, _, size = part.rpartition("=")
    if not name or not size.isascii() or not size.isdigit() or len(size) > 18:
        raise InvalidInputError(
            f"{part!r} of {shown(source)} is no dimension with a size; write 'model.onnx?batch=8&length=128'"
        )
    return name, int(size)


def find_problem(source: str) -> Problem:
    """A problem by name, or from a file."""
    named = named_problem(source) or imported_problem(source)
    if named is not None:
        return named
    return profiles.load(source) if source in profiles.names() else problem_from(read_document(source, *PROBLEMS))


def known_bandwidth(problem: Problem) -> float | None:
    """Bytes per second of the link of the problem's profile, if it has one."""
    name = problem.name
    if isinstance(problem, Graph) and name in profiles.graph_names() and problem == profiles.load_graph(name):
        found: float = profiles.provenance(name)["link_bandwidth"]  # a graph cannot hold it
        return found
    return profile_link(problem)


def link_bandwidth(problem: Problem) -> float:
    """The same; if there is none, that of the default machine, told by a warning."""
    found = known_bandwidth(problem)
    if found is None:
        found = DEFAULT_LINK.bandwidth
        tell(
            f"{name_of(problem)} has no link of its own (provenance.link_bandwidth) and is swept with "
            f"{format_bandwidth(found)}, {DEFAULT_LINK_FROM}; give a bandwidth for another (inf: a free link, 0: none)"
        )
    return found
