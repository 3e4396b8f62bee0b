"""`memsched fit`."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table

from memsched.cli.complete import complete_machines, complete_words
from memsched.cli.inputs import json_option, quiet_option
from memsched.cli.models import USUAL, autocast_option, input_option, model_option
from memsched.cli.outputs import file_option
from memsched.cli.show import INFEASIBLE, answer, facts, quiet, table_like, working
from memsched.errors import InvalidInputError, MemschedError
from memsched.problems.specs import known_optimizers
from memsched.show.plots.figure import check_matplotlib, check_suffix
from memsched.show.summaries import table_of
from memsched.study.fit import Fit, check_asked
from memsched.support.formats import exact_bytes, format_bytes, unit_written


@click.command()
@model_option
@input_option(USUAL)
@click.option(
    "--device",
    required=True,
    metavar="NAME",
    shell_complete=complete_machines,
    help="v100, a100:pcie4, h200, ...: the GPU to train on; here: the one in this machine.",
)
@click.option("-m", "--memory", metavar="SIZE", help="Memory to fit, such as 80GiB. By default that of the GPU.")
@click.option(
    "--optimizer",
    metavar="SPEC",
    shell_complete=complete_words(known_optimizers),
    help="A class of torch.optim: adamw, sgd?momentum=0.9, ..; or bytes of its state.",
)
@click.option(
    "--loss",
    metavar="SPEC",
    help="A function of the model's results, FILE.py:FUNCTION or MODULE:FUNCTION; without it a loss returned counts.",
)
@autocast_option
@click.option("-b", "--bandwidth", metavar="RATE", help="Of the link to the host, such as 24GB/s.")
@click.option("--time-limit", default="5", show_default=True, metavar="SECONDS", help="For the planner, each time.")
@click.option("--largest/--no-largest", default=True, help="Search for the largest batches, too.")
@click.option("--search-limit", metavar="SECONDS", help="For all searches of largest sizes together.")
@click.option("--length", is_flag=True, help="Search for the largest length of sequences, dimension 1, instead.")
@file_option("-o", "--output", help="Save a picture: .png, .svg or .pdf.")
@quiet_option
@json_option
def fit(
    model: str,
    input: str | None,
    device: str,
    memory: str | None,
    optimizer: str | None,
    loss: str | None,
    autocast: str | None,
    bandwidth: str | None,
    time_limit: str,
    largest: bool,
    search_limit: str | None,
    length: bool,
    output: str | None,
    as_json: bool,
) -> None:
    """Say whether a PyTorch model fits a GPU, and what makes it fit.

    \b
    memsched fit --model transformers:gpt2 --input 8x1024:int --optimizer adamw --device h100 --memory 8GiB
    memsched fit --model torchvision:resnet50 --input 64x3x224x224 --optimizer "sgd?momentum=0.9" --device t4

    No GPU is needed, and no memory for the weights: bytes are counted on tensors without data, times are modelled.
    SPEC as in `memsched profile`. Needs memsched[torch]. A function of yours: nets.py:make, or nets.py:make?width=64.
    """
    if output is not None:
        check_suffix(output)
        check_matplotlib()  # before the work
    if memory is not None and memory.strip().endswith("%"):
        raise InvalidInputError(
            f"--memory is {memory!r}; give a size, such as 80GiB: it is the device's, which has no share"
        )
    asked: dict[str, Any] = {"device": device, "memory": memory, "optimizer": optimizer, "autocast": autocast}
    asked |= {"loss": loss, "bandwidth": bandwidth, "time_limit": time_limit, "search_limit": search_limit}
    check_asked(model, input, **asked)  # before PyTorch is imported, which takes seconds
    try:
        from memsched.torch.preflight import fit_spec
    except ImportError as error:
        if error.name != "torch":
            raise
        raise MemschedError("a look at a model needs PyTorch: pip install 'memsched[torch]'") from error
    if not quiet():
        sizes = "lengths" if length else "batches"
        more = f", and finding the largest {sizes}; --no-largest is quicker" if largest else ""
        click.echo(f"looking at {model}: counting its bytes{more}", err=True)
    with working(f"looking at {model}") as say:
        sought = "length" if largest and length else largest
        found = fit_spec(model, input, **asked, largest=sought, progress=say)
    if output is not None:
        found.plot(output)
    answer(as_json, found.to_json, _summary(found), "", table_like(table_of(found)), *found.notes, saved=[output])
    if not any(one.fits for one in found.ways):
        click.get_current_context().exit(INFEASIBLE)


def _summary(found: Fit) -> Table:
    unit = unit_written(found.memory)
    step, verdict = found.steady, "fits" if found.fits else "does not fit"

    def size(count: int) -> str:
        return format_bytes(count, unit)

    held = ("parameters", "buffers", "inputs", "optimizer", "gradients")
    rows = [
        ("device", f"{exact_bytes(found.memory, unit)}: {found.times}"),
        ("plain PyTorch", f"{verdict}: {exact_bytes(found.peak_memory, unit)} at the peak of a steady step"),
        ("forward, backward", size(step.peak_forward_backward)),
        ("optimizer's step", size(step.peak_update) if step.peak_update else "no optimizer"),
        ("of these", ", ".join(f"{name} {size(getattr(step, name))}" for name in held if getattr(step, name))),
        ("what to do", found.next_step),
    ]
    return facts(rows, found.name)
