"""Saved plans of `memsched.torch`, read and checked: they may come from anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from memsched.errors import InvalidInputError, MemschedError, shown
from memsched.result import Result
from memsched.support import checks
from memsched.support.documents import Document, Source, check_keys, read_document
from memsched.torch.compiled import cache
from memsched.torch.compiled.compiled_plan import compiled_plan
from memsched.torch.compiled.options import read_options
from memsched.torch.compiled.resident import Resident
from memsched.torch.compiled.sizes import LossBytes

FORMAT = "memsched-torch-plan/2"
SAVED = ("budget", "device", "bandwidth", "host_memory", "planner", "time_limit", "optimizer", "reserve")
"""Options that a document has."""
_KEYS = ("options", "loss", "on", "unplanned", "resident", "plan", "result")


def read_plan(source: Source) -> dict[str, Any]:
    """What `TorchPlan` is made of, from its document.

    Raises
    ------
    InvalidInputError
        It is not a plan, or one of another version.
    """
    document = read_document(source, FORMAT)
    check_keys(document, FORMAT, ("format", *_KEYS), ("parameters",))
    try:
        return _read(document)
    except MemschedError:
        raise
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidInputError(f"the plan cannot be read ({type(error).__name__}: {error}); is it damaged?") from error


def _read(document: Document) -> dict[str, Any]:
    if not isinstance(document["result"], dict):  # a string would be the path of another file
        raise InvalidInputError(f"result of the plan is {shown(document['result'])}; it must be an object")
    plan = cache.checked(document["plan"])
    checks.text("source of the plan", plan["source"])
    for one in plan.get("inputs", ()):
        checks.text("an input of the plan", one)
    checks.count("checkpointed of the plan", plan.get("checkpointed", 0), 0, 2**62)
    resident, loss = Resident(**_counts("the plan", document["resident"])), document["loss"]
    return {
        "plan": compiled_plan(Result.from_json(document["result"]), resident, plan),
        "document": plan,
        "options": read_options(document["options"]),
        "loss": LossBytes(**_counts("loss of the plan", loss if isinstance(loss, dict) else {"most": loss})),
        "device": torch.device(checks.text("on of the plan", document["on"])),
        "unplanned": [checks.text("unplanned of the plan", one) for one in document["unplanned"]],
        "parameters": document.get("parameters"),
    }


def _counts(what: str, parts: Mapping[str, Any]) -> dict[str, int]:
    return {name: checks.count(f"{name} of {what}", one, 0, 2**62) for name, one in parts.items()}
