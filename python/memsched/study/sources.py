"""Problems by name, as command lines and files give them, and the link that a profile was made with."""

from __future__ import annotations

import os
from pathlib import Path

from memsched import profiles
from memsched.errors import InvalidInputError, shown
from memsched.problems.problem import Problem, problem_from, profile_link
from memsched.support.documents import read_document

PROBLEMS = ("memsched-chain/1", "memsched-graph/1", "memsched-family/1")


def named_problem(source: str) -> Problem | None:
    """The problem of a name graph:NAME (a shipped graph) or analytic:NETWORK:BATCH[:GPU] (by formula); else None.

    The prefix graph: may be left out where no chain has the name.
    """
    if source in profiles.graph_names() and source not in profiles.names():
        return profiles.load_graph(source)
    kind, _, rest = source.partition(":")
    if kind == "graph" and rest:
        return profiles.load_graph(rest)
    if kind != "analytic" or not rest:
        return None
    network, *numbers = rest.split(":")
    if len(numbers) not in (1, 2) or not numbers[0].isascii() or not numbers[0].isdigit() or len(numbers[0]) > 18:
        raise InvalidInputError(
            f"the problem is {shown(source)}; a network by formula is analytic:NETWORK:BATCH[:GPU], "
            "such as analytic:resnet50:512 or analytic:vgg16:256:k40m"
        )
    return profiles.analytic(network, int(numbers[0]), *numbers[1:])


def find_problem(source: str) -> Problem:
    """A problem by name, or from a file."""
    named = named_problem(source)
    if named is not None:
        return named
    path = Path(source)
    if source in profiles.names() or (not path.suffix and not os.path.exists(path)):  # may contain anything
        return profiles.load(source)  # for an unknown name the error lists similar ones
    return problem_from(read_document(path, *PROBLEMS))


def link_bandwidth(problem: Problem, remedy: str) -> float:
    """Bytes per second of the link of the problem's profile; if it has none, the error says what to give: `remedy`."""
    found = profile_link(problem)
    if found is None:
        raise InvalidInputError(
            f"no bandwidth: '{problem.name}' has no provenance.link_bandwidth; "
            f"{remedy}, such as 12GB/s (inf: a free link, 0: no link)"
        )
    return found
