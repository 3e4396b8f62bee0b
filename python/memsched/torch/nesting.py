"""How arguments or results nest: in words, and as JSON that a stranger may have written.

PyTorch's own reader of such JSON imports whatever class the text names, so it is not used. The text is the one that it
reads and writes, for the containers below.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from typing import Any

from torch.utils import _pytree as pytree

from memsched.errors import InvalidInputError
from memsched.support import checks

_VERSION = 1
_DEEPEST = 50  # levels of containers
_SEQUENCES: dict[str, type] = {"builtins.tuple": tuple, "builtins.list": list, "collections.deque": deque}
_MAPPINGS: dict[str, type] = {"builtins.dict": dict, "collections.OrderedDict": OrderedDict}
_NAMES = {kind: name for name, kind in (_SEQUENCES | _MAPPINGS).items()}
_LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}


def nesting(spec: pytree.TreeSpec) -> str:
    """With a star for each leaf: "(*, {'mask': *})"."""
    return repr(pytree.tree_unflatten([_STAR] * spec.num_leaves, spec))


def nesting_to_json(spec: pytree.TreeSpec) -> list[Any]:
    """A JSON array.

    Raises
    ------
    InvalidInputError
        A container is no tuple, list, dict, OrderedDict or deque, or a dict has keys that are no strings.
    """
    return [_VERSION, _to_json(spec)]


def nesting_from_json(document: object) -> pytree.TreeSpec:
    """What `nesting_to_json` wrote. Nothing is imported and nothing is called but the containers listed there.

    Raises
    ------
    InvalidInputError
        It names another container, or is damaged.
    """
    version, tree = document if isinstance(document, list) and len(document) == 2 else (None, None)
    if version != _VERSION or isinstance(version, bool):
        raise InvalidInputError(f"inputs of the plan is {checks.shown(document)}; it must be [{_VERSION}, {{...}}]")
    value = _from_json(tree, 0)
    if not (isinstance(value, tuple) and [type(part) for part in value] == [tuple, dict]):
        raise InvalidInputError("inputs of the plan nest otherwise than (args, kwargs), a tuple and a dict")
    return pytree.tree_structure(value)


def _to_json(spec: pytree.TreeSpec) -> dict[str, Any]:
    if spec.is_leaf():
        return dict(_LEAF)
    name, context = _NAMES.get(spec.type), spec.context
    keyed = name in _MAPPINGS and all(isinstance(key, str) for key in context)
    if name is None or not (keyed or context is None):
        what = f"a {spec.type.__name__}" if name is None else f"a {spec.type.__name__} with {context!r}"
        raise InvalidInputError(
            f"the inputs nest in {what}, which cannot be saved; nest them in tuples, lists, and dicts with strings as "
            "keys"
        )
    children = [_to_json(child) for child in spec.children()]
    return {"type": name, "context": json.dumps(context), "children_spec": children}


def _from_json(node: object, depth: int) -> Any:
    """A value that nests so, with None for each leaf's place."""
    if not isinstance(node, dict) or set(node) != set(_LEAF) or not isinstance(node["children_spec"], list):
        raise InvalidInputError(f"inputs of the plan hold {checks.shown(node)}, which is no container and no leaf")
    if depth > _DEEPEST:
        raise InvalidInputError(f"inputs of the plan nest deeper than {_DEEPEST} levels")
    name = node["type"]
    if name is None:
        if node != _LEAF:
            raise InvalidInputError(f"a leaf among the inputs of the plan is {checks.shown(node)}; it must be {_LEAF}")
        return _STAR
    if not isinstance(name, str) or name not in (*_SEQUENCES, *_MAPPINGS):
        raise InvalidInputError(
            f"inputs of the plan nest in {checks.shown(name)}; only {', '.join(_NAMES.values())} are read"
        )
    children = [_from_json(child, depth + 1) for child in node["children_spec"]]
    keys = _keys(node["context"])
    if name in _SEQUENCES:
        if keys is not None:
            raise InvalidInputError(f"context of a {name} is {checks.shown(keys)}; it must be null")
        return _SEQUENCES[name](children)
    if keys is None or len(keys) != len(children) or len({*keys}) != len(keys):
        raise InvalidInputError(
            f"keys of a {name} are {checks.shown(keys)} for {len(children)} values; give one each, all different"
        )
    return _MAPPINGS[name](zip(keys, children, strict=True))


def _keys(context: object) -> list[str] | None:
    """The keys of a mapping, or None."""
    try:
        keys = json.loads(checks.text("context of a container", context))
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"context of a container is {checks.shown(context)}, which is no JSON") from error
    if keys is not None and not (isinstance(keys, list) and all(isinstance(key, str) for key in keys)):
        raise InvalidInputError(f"context of a container is {checks.shown(context)}; it must be keys or null")
    return keys


class _Star:
    def __repr__(self) -> str:
        return "*"


_STAR = _Star()
