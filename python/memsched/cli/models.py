"""The options that say which PyTorch model is meant, and how it trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from memsched.cli.complete import complete_words
from memsched.problems.specs import AUTOCASTS

USUAL = "By default usual ones, batch 8."

model_option = click.option(
    "--model",
    required=True,
    metavar="SPEC",
    help="torchvision:NAME, timm:NAME, transformers:TYPE, FILE.py:FUNCTION or MODULE:FUNCTION.",
)
autocast_option = click.option(
    "--autocast",
    metavar="TYPE",
    shell_complete=complete_words(lambda: AUTOCASTS),
    help="Train under autocast to bf16 or fp16.",
)


def input_option(more: str) -> Callable[..., Any]:
    """Add --input; its help ends so."""
    return click.option("--input", metavar="SHAPES", help=f"32x3x224x224, 8x1024:int, ... {more}")
