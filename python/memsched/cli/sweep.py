"""`memsched sweep`."""

from __future__ import annotations

import importlib.util
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from memsched.cli import inputs, outputs
from memsched.cli.complete import complete_files
from memsched.cli.outputs import file_option
from memsched.cli.show import (
    complain,
    live,
    new_table,
    now_and_then,
    print_csv,
    print_json,
    print_rich,
    say,
    shown,
    where_saved,
)
from memsched.errors import InvalidInputError
from memsched.show.plots.sweep import MOST_PANELS
from memsched.show.report.sweep_rows import standings
from memsched.show.words import from_one_table, kinds_of_gaps
from memsched.study.sources import name_in, path_in
from memsched.study.sweep import Sweep, SweepProgress
from memsched.study.sweep import sweep as run_sweep
from memsched.study.sweep.spec import read_spec
from memsched.study.sweep.table import in_columns
from memsched.support.documents import fields
from memsched.support.formats import counted, format_percent, format_seconds

if TYPE_CHECKING:
    from concurrent.futures import Executor

TABLES = (".parquet", ".csv")
_SHOWN = 5  # failures to list


def _say(progress: SweepProgress) -> str:
    left = "" if progress.remaining is None else f", {format_seconds(progress.remaining, 2)} left at this rate"
    kept = f", {progress.kept} kept" if progress.kept else ""
    failed = f", {progress.failed} failed" if progress.failed else ""
    return f"{progress.rate:.3g} points/s{left}{kept}{failed}"


@contextmanager
def _showing() -> Iterator[Callable[[SweepProgress], None]]:
    """A progress bar on a terminal; otherwise a line on stderr now and then."""
    if not live():
        due = now_and_then()

        def line(progress: SweepProgress) -> None:
            if due():
                say(f"{progress.kept + progress.finished} of {counted(progress.points, 'point')}, {_say(progress)}")

        yield line
        return
    columns = (
        TextColumn("sweeping"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")
        yield lambda progress: bar.update(
            task, total=progress.points, completed=progress.kept + progress.finished, description=_say(progress)
        )


@contextmanager
def _dask(address: str) -> Iterator[Executor]:
    """The executor of a Dask scheduler whose workers have this memsched."""
    try:
        import distributed
    except ImportError as error:
        raise InvalidInputError(f"--dask needs {error.name}; pip install 'memsched[dask]'") from error
    try:
        client = distributed.Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"--dask {address!r}: no scheduler answers there ({error}); start one with `dask scheduler`"
        ) from error
    try:
        _check_workers(client, address)
        yield client.get_executor()
    finally:
        client.close()


def _check_workers(client: Any, address: str) -> None:
    import memsched

    found = client.run(_version)
    if not found:
        raise InvalidInputError(f"the scheduler at {address!r} has no workers; start some with `dask worker {address}`")
    for worker, version in found.items():
        if version != memsched.__version__:
            raise InvalidInputError(
                f"the worker {worker} has memsched {version}, not {memsched.__version__} as here; install the same"
            )


def _version() -> str:
    try:
        import memsched
    except ImportError:
        return "not installed"
    return memsched.__version__


def _summary(found: Sweep) -> Table:
    gap = "claimed gap" if found.claimed else "mean gap"
    table = new_table("planner", "points", "planned", "best", gap, "over ideal", "planned in")
    for one in standings(found.rows, [row["planner"] for row in found]):
        cells = [one.name, str(one.points), str(one.planned)]
        if one.planned:
            cells += [str(one.best), *(format_percent(share or 0.0) for share in (one.mean_gap, one.over_ideal))]
            cells.append(format_seconds(one.median_runtime or 0.0, 2))
        table.add_row(*map(shown, cells))
    return table


def _kept(store: str | None) -> list[str]:
    """Where the points are, and how to look at them."""
    if store is None:
        return []
    show = f"memsched report {shlex.quote(store)} -o sweep.html"
    return [f"saved in {store}: {show} shows them, read_store({store!r}) reads them"]


def _notes(found: Sweep, kept: int, seconds: float) -> list[str]:
    there = f", of which {kept} were in the store," if kept else ""
    notes = [
        f"{counted(len(found), 'point')}{there} in {format_seconds(seconds, 2)}: {found.count('planned')} planned, "
        f"{found.count('infeasible')} infeasible, {found.count('failed')} failed",
        "best: no planner is faster at the same problem and device; over ideal: the mean above the sum of run times; "
        "planned in: the median",
    ]
    counts = {one.name: one.planned for one in standings(found.rows, [row["planner"] for row in found])}
    fewer = [f"{name} {count}" for name, count in counts.items() if count < max(counts.values())]
    if fewer:
        most = max(counts.values())
        notes.append(
            f"means are over a planner's own plans, and some have fewer than {most}, at other points: "
            f"{', '.join(fewer)}; best compares point by point"
        )
    tabled = sorted({row["planner"] for row in found if row["table_slots"] is not None})
    notes += filter(None, [kinds_of_gaps(found), from_one_table(tabled)])
    if found.claimed:
        notes.append(
            "claimed gap: points that were in the store already are as it has them, neither planned nor bounded again; "
            "memsched.plan_again plans one anew"
        )
    failed = [row for row in found if row["status"] == "failed"]
    for row in failed[:_SHOWN]:
        notes.append(f"failed: {row['planner']} on {row['problem']} with {row['memory']} bytes: {row['error']}")
    if len(failed) > _SHOWN:
        notes.append(f"and {counted(len(failed) - _SHOWN, 'more failure')}; see the rows")
    return notes


def _check_table(path: str) -> str:
    outputs.check_ending(path, *TABLES)
    if path.lower().endswith(".parquet"):
        _check_modules(path, "pandas", "pyarrow")
    return path


def _check_plot(path: str) -> str:
    _check_modules(path, "matplotlib")
    return outputs.check_picture(path)


def _check_modules(path: str, *names: str) -> None:
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise InvalidInputError(f"'{path}' needs {name}, which is missing; pip install 'memsched[cli,sweep]'")


@click.command()
@click.argument("spec", metavar="SPEC.toml", shell_complete=complete_files)
@file_option(
    "--store", check=outputs.check_store, help="SQLite file that keeps finished points, which are not planned again."
)
@file_option("-o", "--output", check=_check_table, help="Write the table: .parquet or .csv.")
@file_option("--plot", "picture", check=_check_plot, help="Draw makespans over memory: .png, .svg or .pdf.")
@click.option("-j", "--jobs", type=click.IntRange(1, 10_000), metavar="N", help="Threads; by default one per core.")
@click.option("--processes", is_flag=True, help="Use processes instead of threads.")
@click.option(
    "--dask", "scheduler", metavar="ADDRESS", help="Plan on the workers of a Dask scheduler, tcp://host:8786."
)
@click.option("--retry-failed", is_flag=True, help="Plan points that failed before again.")
@inputs.quiet_option
@inputs.csv_option
@inputs.json_option
@click.pass_context
def sweep(
    context: click.Context,
    spec: str,
    store: str | None,
    output: str | None,
    picture: str | None,
    jobs: int | None,
    processes: bool,
    scheduler: str | None,
    retry_failed: bool,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Plan for many memories and bandwidths, as SPEC.toml says.

    Every problem is planned with every planner, for every memory and bandwidth.

    \b
    problems = ["resnet101-224-b32", "gpt2-1024-b8"]
    planners = ["greedy", "rotor", "pofo"]      # by default all
    memory = {from = "0%", to = "100%", points = 50}
    bandwidth = ["6GB/s", "12GB/s"]             # by default the profile's, or 12.2GB/s
    [options.dynprog]
    slots = 200

    \b
    memsched sweep spec.toml --store out.sqlite --jobs 2
    memsched report out.sqlite -o report.html

    After an interruption or a kill, the same command continues; several may share one store. The exit status is 0 when
    at least one point is planned, 3 when nothing fits anywhere, and 1 when all else failed.
    """
    if processes and scheduler is not None:
        raise click.UsageError("give --processes or --dask, not both")
    wanted = read_spec(inputs.check_input(spec))
    if store is None and output is None and not (as_json or as_csv):
        say("nothing is kept but the table below; --store FILE keeps each point, -o FILE the rows")
    for problem in wanted.problems:
        if name_in(problem) is None:
            inputs.check_input(path_in(problem))
    panels = len(wanted.problems) * len(wanted.bandwidth or [1])
    if picture is not None and panels > MOST_PANELS:
        raise InvalidInputError(f"'{picture}' would have {panels} panels, more than {MOST_PANELS}; leave --plot out")
    began, kept = time.perf_counter(), 0

    def run(executor: Executor | str) -> Sweep:
        with _showing() as show:

            def progress(now: SweepProgress) -> None:
                nonlocal kept
                kept = now.kept
                show(now)

            return run_sweep(
                wanted.problems,
                wanted.planners,
                beta=wanted.bandwidth or ["profile"],
                **fields(wanted, "memory", "device", "options", "shared_tables", "slots_of_tables"),
                store=store,
                executor=executor,
                jobs=jobs,
                retry_failed=retry_failed,
                progress=progress,
            )

    try:
        if scheduler is not None:
            with _dask(scheduler) as executor:
                found = run(executor)
        else:
            found = run("processes" if processes else "threads")
    except KeyboardInterrupt:
        if store is not None:
            say(f"interrupted; finished points are in '{store}': run the same command to continue")
            context.exit(130)
        raise
    if output is not None:
        found.to_csv(output) if output.lower().endswith(".csv") else found.to_parquet(output)
    if as_json:
        counts = {status: found.count(status) for status in ("planned", "infeasible", "failed")}
        print_json({"points": len(found), **counts, "rows": None if store else found.rows})
    elif as_csv:
        print_csv(in_columns(found.rows))
    drawn = picture if found.count("planned") else None
    if drawn is not None:
        found.plot(drawn)
    if not as_json and not as_csv:
        notes = _notes(found, kept, time.perf_counter() - began)
        print_rich(_summary(found), "", *notes, *_kept(store), *where_saved(output, drawn))
    if not found.count("planned"):
        complain(f"no point has a plan: {found.rows[0]['error']}")
        context.exit(3 if found.count("infeasible") == len(found) else 1)
