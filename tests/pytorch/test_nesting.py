"""How inputs nest is read from a plan without running anything that the file names."""

from __future__ import annotations

import json
import sys
from collections import OrderedDict, deque, namedtuple
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from memsched.errors import InvalidInputError
from memsched.torch.nesting import nesting_from_json, nesting_to_json

Pair = namedtuple("Pair", "a b")
LEAF = {"type": None, "context": None, "children_spec": []}


def containers(inner: Any) -> Any:
    mappings = st.dictionaries(st.text(max_size=3), inner, max_size=3)
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(deque),
        mappings,
        mappings.map(OrderedDict),
    )


ARGUMENTS = st.recursive(st.integers(0, 9), containers, max_leaves=12)


@given(st.lists(ARGUMENTS, max_size=3), st.dictionaries(st.text(max_size=3), ARGUMENTS, max_size=2))
def test_what_is_written_is_read_again_and_is_what_pytorch_writes(args: list[Any], kwargs: dict[str, Any]) -> None:
    spec = pytree.tree_structure((tuple(args), kwargs))
    document = json.loads(json.dumps(nesting_to_json(spec)))
    assert nesting_from_json(document) == spec
    assert document == json.loads(pytree.treespec_dumps(spec))


@pytest.mark.parametrize("value", [Pair(1, 2), {1: 2}, {(1, 2): 3}])
def test_what_could_not_be_read_safely_is_not_written(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="cannot be saved"):
        nesting_to_json(pytree.tree_structure(((value,), {})))


def node(name: Any, children: Any = (), context: Any = "null") -> dict[str, Any]:
    return {"type": name, "context": context, "children_spec": list(children)}


def whole(inner: Any) -> list[Any]:
    return [1, node("builtins.tuple", [node("builtins.tuple", [inner]), node("builtins.dict", [], "[]")])]


NAMES = (
    *("builtins.set", "os.system", "evil_module.Thing", "collections.namedtuple", "collections.defaultdict"),
    *("torch.Size", "", 5, [], {}, True),
)


@pytest.mark.parametrize("name", NAMES)
def test_other_containers_are_refused_by_name(name: Any) -> None:
    with pytest.raises(InvalidInputError, match="inputs of the plan nest in"):
        nesting_from_json(whole(node(name, [LEAF])))


def test_no_module_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's reader imports this module, and its first line runs."""
    mark = tmp_path / "ran"
    (tmp_path / "stranger.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Thing: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    factory = {"default_factory_module": "stranger", "default_factory_name": "Thing", "dict_context": []}
    for inner in (
        node("stranger.Thing", [LEAF], "[]"),
        node("collections.defaultdict", [], factory),
        node("collections.namedtuple", [], json.dumps({"class_name": "Thing", "module": "stranger"})),
    ):
        with pytest.raises(InvalidInputError):
            nesting_from_json(whole(inner))
    assert not mark.exists()
    assert "stranger" not in sys.modules


STRANGE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(allow_nan=False),
    st.sampled_from([*NAMES[:6], "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"]),
    st.sampled_from(["null", "[]", '["a"]', '["a", "a"]', "[1]", "{}", "[", "1" * 5000, "[" * 3000, "NaN"]),
)
NODES = st.recursive(
    st.one_of(STRANGE, st.just(LEAF)),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"type": STRANGE, "context": STRANGE, "children_spec": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"type": STRANGE, "context": STRANGE, "children_spec": inner}),
        st.lists(inner, max_size=2),
    ),
    max_leaves=10,
)


@given(st.one_of(NODES.map(whole), NODES.map(lambda one: [1, one]), NODES))
def test_any_document_is_refused_or_read_as_plain_containers(document: Any) -> None:
    before = set(sys.modules)
    try:
        spec = nesting_from_json(document)
    except InvalidInputError:
        spec = None
    assert set(sys.modules) == before
    if spec is not None:
        assert nesting_from_json(nesting_to_json(spec)) == spec


def test_endless_nesting_is_refused() -> None:
    inner: Any = LEAF
    for _ in range(200):
        inner = node("builtins.list", [inner])
    with pytest.raises(InvalidInputError, match="deeper"):
        nesting_from_json(whole(inner))
