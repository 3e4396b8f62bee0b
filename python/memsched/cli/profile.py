"""`memsched profile`."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table

from memsched._core import Chain
from memsched.cli.complete import complete_machines
from memsched.cli.inputs import json_option, quiet_option
from memsched.cli.models import USUAL, autocast_option, input_option, model_option
from memsched.cli.outputs import check_json, file_option
from memsched.cli.show import answer, facts, working
from memsched.errors import MemschedError
from memsched.planners.registry import min_memory
from memsched.problems.problem import peak_memory
from memsched.study.fit import check_asked
from memsched.support.documents import write_document
from memsched.support.formats import exact_bytes, format_bandwidth, format_bytes, format_seconds

# Of the resident bytes, in words, where their names do not say it.
_PARTS = {
    "environment": "masks and other values that later stages read (environment)",
    "early_results": "results that are ready before the last stage (early_results)",
    "repeated": "new values of buffers, and copies of the old ones (repeated)",
    "shared_gradients": "gradients of tied weights that wait for their sum (shared_gradients)",
    "random": "states of random operations that may run again (random)",
}


@click.command()
@model_option
@input_option(USUAL)
@click.option(
    "--device",
    default="here",
    show_default=True,
    metavar="NAME",
    shell_complete=complete_machines,
    help="here: measured. v100, a100:pcie4, ...: modelled, without memory for the model.",
)
@autocast_option
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random weights and inputs.")
@file_option("-o", "--output", check=check_json, help="Save the chain (memsched-chain/1), to be used as PROBLEM.")
@quiet_option
@json_option
def profile(
    model: str, input: str | None, device: str, autocast: str | None, seed: int, output: str | None, as_json: bool
) -> None:
    """Make a profile of a PyTorch model, to plan for.

    The model becomes a chain: bytes and seconds of each stage of a training step.

    \b
    memsched profile --model torchvision:resnet101 --input 32x3x224x224 --device v100 -o chain.json
    memsched plan chain.json --memory 40%

    SPEC may have options: "transformers:gpt2?n_layer=24". MODULE:FUNCTION is imported from the current folder and
    returns a module, or a module and a tuple of its inputs. Weights are random: nothing is downloaded.

    With --json the chain is printed in the form that -o saves. Needs memsched[torch].
    """
    check_asked(model, input, device=device, autocast=autocast)
    try:
        from memsched.torch.profile import profile_spec
    except ImportError as error:
        if error.name != "torch":
            raise
        raise MemschedError("profiling a model needs PyTorch: pip install 'memsched[torch]'") from error
    with working(f"profiling: {model}"):
        chain = profile_spec(model, input, device=device, autocast=autocast, seed=seed)
    if output is not None:
        write_document(output, chain.to_json())
    answer(as_json, chain.to_json, _summary(chain), saved=[output])


def _summary(chain: Chain) -> Table:
    provenance: dict[str, Any] = chain.provenance or {}
    resident: dict[str, int] = provenance["resident"]
    seconds = (float(chain.forward_time.sum()), float(chain.backward_time.sum()))
    bandwidth = format_bandwidth(provenance["link_bandwidth"])
    rows = [
        ("stages", str(chain.n)),
        ("parameters", format_bytes(resident.get("parameters", 0))),
        ("resident", f"{exact_bytes(chain.resident)}: {', '.join(_PARTS.get(part, part) for part in resident)}"),
        ("min_memory", exact_bytes(min_memory(chain))),
        ("peak_memory", f"{exact_bytes(peak_memory(chain))}, of the plain run"),
        ("compute", f"forward {format_seconds(seconds[0])}, backward {format_seconds(seconds[1])}"),
        ("times", provenance["times"]),
        ("link", f"{bandwidth} ({provenance['link']})"),
        ("bytes", provenance["source"]),
    ]
    return facts(rows, chain.name)
