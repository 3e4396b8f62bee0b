"""Plans of PyTorch models with ops and tensors called "module/op", as pictures, pages and traces tell them."""

from __future__ import annotations

from collections.abc import Mapping

from memsched.support.documents import Document


def in_modules(document: Document, modules: Mapping[str, str]) -> Document:
    """The JSON form of the same result, with these modules in the names of ops, and of what they write and update.

    Examples
    --------
    >>> import memsched as ms
    >>> result = ms.selective(ms.to_graph(ms.Chain([1], [1], [4, 4], [4, 4])), 20)
    >>> named = in_modules(result.to_json(), {"F1": "layers.0"})
    >>> [step["run"] for step in named["schedule"]["steps"] if "run" in step]
    ['layers.0/F1', 'loss', 'B1']
    """
    graph, placement = document["problem"], document["placement"]
    if not isinstance(graph, dict) or "ops" not in graph:
        return document
    ops = {op["name"]: _called(op["name"], modules.get(op["name"])) for op in graph["ops"]}
    changed_by = ((op, name) for op in graph["ops"] for name in (*op["writes"], *op.get("updates", ())))
    tensors = {name: _called(name, modules.get(op["name"])) for op, name in changed_by}

    def names(given: list[str]) -> list[str]:
        return [tensors.get(name, name) for name in given]

    border = document["schedule"].get("border")
    lists = ("reads", "writes", "tape", "updates")
    steps = []
    for step in document["schedule"]["steps"]:
        changed = dict(step)
        for verb in ("offload", "prefetch", "free"):
            if verb in step:
                changed[verb] = tensors.get(step[verb], step[verb])
        for verb in ("run", "update"):
            if verb in step:
                changed[verb] = ops.get(step[verb], step[verb])
        if "skip" in step:
            changed["skip"] = names(step["skip"])
        if isinstance(step.get("at"), dict):
            changed["at"] = {tensors.get(name, name): offset for name, offset in step["at"].items()}
        steps.append(changed)
    return {
        **document,
        "problem": {
            **graph,
            "tensors": [{**one, "name": tensors.get(one["name"], one["name"])} for one in graph["tensors"]],
            "ops": [
                {**op, "name": ops[op["name"]], **{key: names(op[key]) for key in lists if key in op}}
                for op in graph["ops"]
            ],
        },
        "schedule": {
            **document["schedule"],
            "steps": steps,
            **({"border": {tensors.get(name, name): place for name, place in border.items()}} if border else {}),
        },
        "placement": placement
        and {
            **placement,
            "buffers": [{**one, "name": tensors.get(one.get("name"), one.get("name"))} for one in placement["buffers"]],
        },
    }


def _called(name: str, module: str | None) -> str:
    """Of a step of several graphs, an op is called "0/op": its graph stays in front."""
    start, slash, own = name.rpartition("/")
    return name if module is None else f"{start}{slash}{module}/{own}"
