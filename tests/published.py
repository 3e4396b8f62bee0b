"""The JSON schemas that the package publishes."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

SCHEMAS = {
    schema["$id"].split(":")[2]: schema
    for file in (resources.files("memsched.support") / "schemas").iterdir()
    for schema in [json.loads(file.read_text(encoding="utf-8"))]
}
REGISTRY = Registry().with_resources((s["$id"], Resource.from_contents(s)) for s in SCHEMAS.values())


def conforms(kind: str, document: Any) -> None:
    """Is JSON without NaN, and what the published schema says."""
    text = json.dumps(document, allow_nan=False)
    Draft202012Validator(SCHEMAS[kind.split()[0]], registry=REGISTRY).validate(json.loads(text))
