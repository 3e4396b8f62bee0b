"""Models, inputs and optimisers that a line of text names. PyTorch is not imported: what is wrong is told at once."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib.util
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from memsched.errors import InvalidInputError
from memsched.support import checks
from memsched.support.formats import Bytes
from memsched.support.units import parse_bytes

PIP = {
    "torchvision": "pip install --no-deps torchvision==0.28.0 pillow",
    "timm": "pip install --no-deps timm==1.0.29 safetensors pyyaml huggingface_hub",
    "transformers": "pip install transformers==5.17.0",
}
"""The packages that build models by name, and what installs each."""

AUTOCASTS = {"bf16": "bfloat16", "fp16": "float16"}

OWN_FORMS = "my.module:function or file.py:function"
SPEC_FORMS = f"write torchvision:resnet101, timm:deit_tiny_patch16_224, transformers:gpt2?n_layer=24, {OWN_FORMS}"
_TYPES = "a type takes options, as in transformers:gpt2?n_layer=36, and names on a hub are not read"
INPUT_FORMS = "write 32x3x224x224, 8x1024:int or 8x1024:int:50257 (whole numbers below 50257), several with commas"
_INPUT = re.compile(r"\s*(\d+(?:x\d+)*)(?::(float|int|bool))?(?::(\d+))?\s*", re.ASCII)

# Where each package defines its models, and how: the sources are read, since to import them takes seconds.
_SOURCES = {
    "torchvision": (("models/*.py", "models/video/*.py"), r"^def ([a-z]\w*)\(\s*\*, *weights\b"),
    "timm": (("models/*.py",), r"^def ([a-z]\w*)\(\s*pretrained\b"),
    "transformers": (("models/auto/*.py",), r'\("([\w.-]+)", "\w+Config"\)'),
}


class ModelSpec(NamedTuple):
    """Which model: one of a package, or what a function of the user's makes."""

    family: str  # torchvision, timm, transformers, or the module of the function
    name: str
    options: dict[str, Any]  # of its constructor, configuration or function
    folder: str  # where the module is looked for first


class InputSpec(NamedTuple):
    """One input."""

    shape: tuple[int, ...]
    kind: str | None  # float, int, bool; None: as the model has it
    below: int | None  # of whole numbers; None: the model's vocabulary


def parse_model(spec: str) -> ModelSpec:
    """Read "family:name?option=value&...", "my.module:function" or "file.py:function".

    Raises
    ------
    InvalidInputError
        It cannot be read, or there is no such model, package or module; near names are told.
    """
    body, _, options = spec.partition("?")
    family, colon, name = body.rpartition(":")
    if not (colon and family and name):
        if body.endswith(".py"):
            raise InvalidInputError(f"the model is {spec!r}; say which class or function of the file: {body}:Net")
        what = "has no family" if body.strip(":") else "is empty"
        raise InvalidInputError(f"the model is {spec!r}, which {what}; {_meant(body.strip(':'))}{SPEC_FORMS}")
    _refuse_call(body, "the model")
    parsed = parse_options(options, f"the model {spec!r}")
    if family in PIP:
        if importlib.util.find_spec(family) is None:
            torch = "" if importlib.util.find_spec("torch") else "pip install 'memsched[torch]', and "
            raise InvalidInputError(
                f"this model needs the package {family}{' and PyTorch, which are' if torch else ', which is'} "
                f"not installed; {torch}{PIP[family]}"
            )
        known = known_models(family)
        if known and (name.partition(".")[0] if family == "timm" else name) not in known:
            kind = "no model type" if family == "transformers" else "no model"
            last = name.rpartition("/")[2]  # of a name on a hub
            alike = near(last, known) or near(last.partition("-")[0], known)
            typed = f"; {_TYPES}" if family == "transformers" else ""
            raise InvalidInputError(f"{family} has {kind} {name!r}{alike}{typed}")
        return ModelSpec(family, name, parsed, "")
    return _own(family, name, parsed, f"the model {spec!r}", SPEC_FORMS)


def parse_loss(spec: str) -> ModelSpec:
    """Read "my.module:function" or "file.py:function", a function of what the model returns.

    Raises
    ------
    InvalidInputError
        It cannot be read, or there is no such module.
    """
    family, _, name = spec.rpartition(":")
    if not (family and name) or family in PIP:
        raise InvalidInputError(
            f"the loss is {spec!r}; write {OWN_FORMS}, a function of what the model returns that returns the loss"
        )
    _refuse_call(spec, "the loss")
    return _own(family, name, {}, f"the loss {spec!r}", f"write {OWN_FORMS}")


def _own(family: str, name: str, options: dict[str, Any], what: str, forms: str) -> ModelSpec:
    """A function of the user's, in a module or a file that is there."""
    folder, file = os.path.split(family)
    module = file.removesuffix(".py")
    if not (module == family or file.endswith(".py")) or not all(one.isidentifier() for one in module.split(".")):
        raise InvalidInputError(f"{what} is in a module that cannot be imported by this name; {forms}")
    if not name.isidentifier():
        raise InvalidInputError(f"{what} ends in {name!r}, which is no name of a function; {forms}")
    _check_module(family, module, os.path.abspath(folder), name, what, forms)
    return ModelSpec(module, name, options, os.path.abspath(folder))


def _check_module(given: str, module: str, folder: str, name: str, what: str, forms: str) -> None:
    """Refuse a module that is nowhere."""
    if given.endswith(".py"):
        if not Path(folder, f"{module}.py").is_file():
            raise InvalidInputError(f"{what} names the file {given!r}, which is not here; {forms}")
        return
    with first_on_path(folder):
        try:
            found = module in sys.modules or importlib.util.find_spec(module.partition(".")[0]) is not None
        except (ImportError, ValueError):
            found = False
    if not found:
        raise InvalidInputError(
            f"{what} names no {'family and no ' * (forms == SPEC_FORMS)}module {module!r}{near(module, PIP)}; "
            f"{_meant(name) * (forms == SPEC_FORMS)}{forms}"
        )


@contextlib.contextmanager
def first_on_path(folder: str) -> Iterator[None]:
    """Import from a folder first, as `python -m` does from the current one."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


@functools.cache
def known_models(family: str) -> tuple[str, ...]:
    """The models that an installed package names in its sources; none if they cannot be found there."""
    spec = importlib.util.find_spec(family)
    patterns, definition = _SOURCES[family]
    folders = [Path(one) for one in (spec.submodule_search_locations or ())] if spec else []
    files = [path for folder in folders for pattern in patterns for path in sorted(folder.glob(pattern))]
    names = (re.findall(definition, path.read_text(encoding="utf-8"), re.MULTILINE) for path in files)
    return tuple(dict.fromkeys(name for found in names for name in found))


def _meant(name: str) -> str:
    """Models of the packages that are here by this name, or one like it."""
    installed = [family for family in PIP if importlib.util.find_spec(family) is not None]
    by_name = {f"{family}:{one}": one for family in installed for one in known_models(family)}
    words = re.sub(r"\W", "_", name.rpartition("/")[2].lower())
    alike = difflib.get_close_matches(words, set(by_name.values()), n=3, cutoff=0.7)
    found = [spec for one in dict.fromkeys([name, *alike]) for spec, other in by_name.items() if other == one]
    absent = [f"{family}:{name}" for family in PIP if family not in installed and name.isidentifier()]
    others = f", or {' or '.join(absent)} (not installed)" if absent else ""
    return f"did you mean {' or '.join(found[:3])}{others}? Or " if found else ""


def near(word: str, known: Iterable[str]) -> str:
    """How an error goes on: the known words that resemble this one."""
    found = difflib.get_close_matches(word, [*known], n=5)
    return f"; near: {', '.join(found)}" if found else ""


def _refuse_call(name: str, what: str) -> None:
    """Refuse a name with options as Python calls it."""
    called = re.fullmatch(r"([^()]+)\((.*)\)", name.strip())
    if called:
        options = re.sub(r"\s*,\s*", "&", re.sub(r"\s*=\s*", "=", called[2].strip()))
        raise InvalidInputError(f"{what} is {name!r}; write {called[1]}{'?' if options else ''}{options}")


def parse_options(text: str, what: str) -> dict[str, Any]:
    """The options behind the question mark of a spec; values are JSON where they can be, else words."""
    options: dict[str, Any] = {}
    for pair in text.split("&") if text else []:
        key, equals, value = pair.partition("=")
        if not (key and equals and value) or key in options:
            raise InvalidInputError(f"{what} has the option {pair!r}; write key=value once a key, with & between")
        if re.fullmatch(r"-?\d+,\d+", value):
            meant = f"{key}={value.replace(',', '.')}"
            raise InvalidInputError(f"{what} has the option {pair!r}, with a decimal comma; write {meant}")
        try:
            options[key] = json.loads(value.lower() if value in ("True", "False") else value)
        except json.JSONDecodeError:
            options[key] = value
    return options


def parse_input(text: str) -> tuple[InputSpec, ...]:
    """Shapes and kinds of the inputs that a text describes.

    Sizes joined by x, then ":int" (int64), ":bool" or ":float"; ":int:100" for whole numbers below 100. Several inputs
    are separated by commas.
    """
    inputs = []
    for part in text.split(","):
        match = _INPUT.fullmatch(part)
        sizes = tuple(int(size) for size in match[1].split("x")) if match else ()
        wrong = match is None or min(sizes) < 1 or math.prod(sizes) >= 2**63
        if match is None or wrong or (match[3] and (match[2] != "int" or int(match[3]) < 1)):
            raise InvalidInputError(f"the input is {part.strip()!r}, which is not a shape of sizes >= 1; {INPUT_FORMS}")
        inputs.append(InputSpec(sizes, match[2], int(match[3]) if match[3] else None))
    return tuple(inputs)


def parse_optimizer(spec: str) -> tuple[str, dict[str, Any]] | Bytes:
    """The class of torch.optim, in small letters, and the options of "sgd?momentum=0.9"; or the bytes of its state."""
    if spec.strip()[:1].isdigit():
        return parse_bytes(spec, "optimizer")
    name, _, options = spec.partition("?")
    _refuse_call(name, "optimizer")
    found, known = name.strip().lower(), known_optimizers()
    if stop := re.search("[:=,]", found):
        raise InvalidInputError(f"optimizer is {spec!r}; its options stand after '?': {found[: stop.start()]}?lr=0.01")
    if known:
        checks.choice("optimizer", found, known)
    return found, parse_options(options, f"the optimizer {spec!r}")


@functools.cache
def known_optimizers() -> tuple[str, ...]:
    """The optimisers of PyTorch, in small letters, as its sources name them; none if they cannot be found there."""
    torch = importlib.util.find_spec("torch")
    for folder in (torch.submodule_search_locations or ()) if torch else ():
        with contextlib.suppress(OSError):
            source = Path(folder, "optim", "__init__.py").read_text(encoding="utf-8")
            names = re.findall(r"^from torch\.optim\.\w+ import ([A-Z]\w+) as \1$", source, re.MULTILINE)
            return tuple(name.lower() for name in names if name != "Optimizer")
    return ()


def parse_autocast(name: str | None) -> str | None:
    """The type of PyTorch's to which autocast casts, by name."""
    if name is None or name in AUTOCASTS.values():
        return name
    if name in AUTOCASTS:
        return AUTOCASTS[name]
    raise InvalidInputError(f"autocast is {name!r}; it must be {' or '.join(AUTOCASTS)}")
