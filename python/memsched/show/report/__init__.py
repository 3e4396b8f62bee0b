"""Reports: a result, several results, or a sweep as one self-contained HTML file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from memsched.arena.placement import Placement
from memsched.errors import InvalidInputError, shown
from memsched.result import Planned, Result, results_in
from memsched.show.report.comparison import studies
from memsched.show.report.page import check_jinja
from memsched.show.report.placement_page import placement_page
from memsched.show.report.results_page import results_page
from memsched.show.report.sweep_page import sweep_page
from memsched.show.words import unit_of
from memsched.study.comparison import Comparison
from memsched.study.sweep.table import Sweep
from memsched.support import checks
from memsched.support.arguments import public
from memsched.support.files import write_bytes
from memsched.support.formats import written_like
from memsched.support.types import Quantity

__all__ = ["check_page", "write_report", "write_sweep_report"]


def check_page(path: str | os.PathLike[str]) -> None:
    """Refuse the name of a file that is no page of HTML."""
    if isinstance(path, str | os.PathLike) and Path(path).suffix.lower() not in (".html", ".htm"):
        raise InvalidInputError(
            f"the output is {shown(str(path))}; a report is a page of HTML, which ends in .html or .htm"
        )


@public
def write_report(
    results: Planned | Placement | Comparison | Sweep | Sequence[Planned],
    path: str | os.PathLike[str],
    *,
    names: Sequence[str] | None = None,
    compare: bool | None = None,
    time_limit: Quantity | None = None,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Write one or several results as one HTML page that loads nothing from the network.

    It shows what is proven about the plan, the streams with the memory below, what happens to each tensor, the
    addresses if the plan has any, all planners on the same problem and the cost of less memory. Plans for the same
    problem are drawn to the same scale. Pictures can be zoomed, tables searched and sorted, and every figure carries
    its exact value. Needs jinja2.

    Parameters
    ----------
    results : Planned, Placement, Comparison, Sweep or sequence of Planned
        From any planners and for any problems. Of a placement alone the page has the addresses, and of a sweep it is
        that of `write_sweep_report`.
    path : str or path
        File to save the page to; it is written whole or not at all.
    names : sequence of str, optional
        What several results are called, such as their files: one name each. By default their planners, with a number
        where several are of one planner on one problem.
    compare : bool, optional
        Whether to run all planners listed for the problem of each result. By default only for a single result.
    time_limit : float or str, optional
        Seconds for each planner that takes a limit, if planners are run.
    progress : callable, optional
        Called with a text before each part of the work.

    Raises
    ------
    InvalidInputError
        There is no result, the time limit is bad, the path does not end in .html or .htm, or the file cannot be
        written.
    MemschedError
        jinja2 is not installed.

    Examples
    --------
    >>> import memsched as ms, pathlib, tempfile
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4])
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "report.html"
    >>> ms.write_report(ms.greedy(chain, M=20, beta=4), path, compare=False)
    >>> path.read_text().startswith("<!DOCTYPE html>")
    True
    """
    check_page(path)
    if isinstance(results, Placement):
        if compare:
            raise InvalidInputError("compare is True, but a Placement has no planners to compare; leave it out")
        check_jinja()
        write_bytes(path, placement_page(results).encode("utf-8", "replace"))
        return
    if isinstance(results, Sweep):
        if compare or names is not None or time_limit is not None:
            raise InvalidInputError("a sweep's page takes no names, compare or time_limit; leave them out")
        return write_sweep_report(results, path)
    if isinstance(results, Comparison):
        results = [one for one in results.values() if isinstance(one, Result)]
    listed = checks.some("results", results_in(results), Result)
    if names is not None:
        names = [checks.text(f"names[{at}]", one) for at, one in enumerate(names if checks.is_list(names) else [names])]
        if len(names) != len(listed):
            raise InvalidInputError(f"names has {len(names)} names; it must have one per result: {len(listed)}")
    wanted = len(listed) == 1 if compare is None else checks.flag("compare", compare)
    checks.progress(progress)
    check_jinja()
    found = studies(listed, time_limit, progress) if wanted else [None] * len(listed)
    with written_like(unit_of(listed)):
        page = results_page(listed, found, names)
    write_bytes(path, page.encode("utf-8", "replace"))


@public
def write_sweep_report(
    rows: Sweep | Sequence[Mapping[str, Any]] | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    title: str = "sweep",
) -> None:
    """Write the points of a sweep as one HTML page that loads nothing from the network.

    For each problem and bandwidth it shows what less memory costs with each planner. It compares the planners over all
    points, and lists failures and points in tables that can be searched and sorted. Needs jinja2.

    Parameters
    ----------
    rows : Sweep or sequence of mapping
        What `memsched.sweep` or `memsched.read_store` returns, or its rows, one per point; or the path of a store.
    path : str or path
        File to save the page to; it is written whole or not at all.
    title : str
        The title of the page.

    Raises
    ------
    InvalidInputError
        A row lacks a key or has a value of the wrong type, the path does not end in .html or .htm, or the file cannot
        be written.
    MemschedError
        jinja2 is not installed.

    Examples
    --------
    >>> import memsched as ms, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "sweep.html"
    >>> ms.write_sweep_report([], path)
    >>> path.read_text().startswith("<!DOCTYPE html>")
    True
    """
    check_page(path)
    if isinstance(rows, str | os.PathLike):
        from memsched.study.sweep.api import read_store  # which imports what plans

        rows = read_store(rows)
    points = rows.rows if isinstance(rows, Sweep) else rows
    with written_like(unit_of(points)):
        page = sweep_page(points, title=checks.text("title", title))
    write_bytes(path, page.encode("utf-8", "replace"))
