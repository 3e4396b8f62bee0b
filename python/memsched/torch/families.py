"""How each family of models is built: torchvision, timm, transformers, and functions of the user's."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from memsched.errors import InvalidInputError

_BATCH = 8
_TOKENS = 128
_PIP = {
    "torchvision": "pip install --no-deps torchvision==0.28.0 pillow",
    "timm": "pip install --no-deps timm==1.0.29 safetensors pyyaml huggingface_hub",
    "transformers": "pip install transformers==5.17.0",
}
SPEC_FORMS = (
    "write torchvision:resnet101, timm:deit_tiny_patch16_224, transformers:gpt2?n_layer=24 or my.module:function"
)
# Schemas only: they let torchvision be imported; the operators of detection models stay without code.
_SCHEMAS = tuple(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms"))
_libraries: list[Any] = []  # a Library that is garbage collected takes its schemas with it


class Parts(NamedTuple):
    """A model as a family builds it, before its inputs are made."""

    model: Any
    args: tuple[Any, ...] | None  # where the model comes with its own
    default: str | None  # the --input that is used when none is given
    names: tuple[str, ...] = ()  # of the arguments that inputs fill, in their order; empty: the first ones
    kind: str = "float"
    vocabulary: int | None = None
    padding: int | None = None  # the token that random ids avoid


def parse_options(text: str, what: str) -> dict[str, Any]:
    """The options behind the question mark of a spec; values are JSON where they can be, else words."""
    options: dict[str, Any] = {}
    for pair in text.split("&") if text else []:
        key, equals, value = pair.partition("=")
        if not (key and equals and value) or key in options:
            raise InvalidInputError(f"{what} has the option {pair!r}; write key=value once a key, with & between")
        try:
            options[key] = json.loads(value.lower() if value in ("True", "False") else value)
        except json.JSONDecodeError:
            options[key] = value
    return options


def _near(word: str, known: Iterable[str]) -> str:
    """How an error goes on: the known words that resemble this one."""
    near = difflib.get_close_matches(word, [*known], n=5)
    return f"; near: {', '.join(near)}" if near else ""


def _require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise InvalidInputError(f"this model needs the package {package}, which is not installed; {_PIP[package]}")


def _define_missing_operators() -> None:
    """Let torchvision's CUDA wheel be imported beside a torch without CUDA.

    Its import registers `nms` and `qnms` although the library that defines them could not be loaded, and dies. So load
    the library first, as torchvision would; only where that fails, define the two schemas.
    """
    cuda = torch.version.cuda is not None or getattr(torch.version, "hip", None) is not None
    if cuda or _libraries or "torchvision" in sys.modules:
        return
    found = importlib.util.find_spec("torchvision")
    for folder in (found.submodule_search_locations or []) if found else []:
        with contextlib.suppress(OSError):
            torch.ops.load_library(os.path.join(folder, "_C.so"))
    if not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in _SCHEMAS:
            library.define(schema)
        _libraries.append(library)


def torchvision() -> Any:
    """The module torchvision, also where its wheel is built for CUDA and torch is not."""
    _require("torchvision")
    _define_missing_operators()
    return importlib.import_module("torchvision")


def _import(package: str) -> Any:
    """timm or transformers, which import torchvision themselves."""
    _require(package)
    if importlib.util.find_spec("torchvision") is not None:
        torchvision()
    return importlib.import_module(package)


def _construct(spec: str, make: Callable[[], Any], *also: type[Exception]) -> Any:
    """Call a zoo's constructor; what it refuses, the errors in `also` included, is an error of the spec."""
    refusals: tuple[type[Exception], ...] = (TypeError, ValueError, AssertionError, *also)
    try:
        return make()
    except refusals as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise InvalidInputError(f"the model {spec!r} cannot be built: {why}; change its options") from error


def _image(options: dict[str, Any], channels: int, height: int, width: int) -> str:
    side = next((options[key] for key in ("image_size", "img_size") if isinstance(options.get(key), int)), None)
    return f"{_BATCH}x{channels}x{side or height}x{side or width}"


def _build_torchvision(name: str, options: dict[str, Any], spec: str) -> Parts:
    models = torchvision().models
    video = models.list_models(module=models.video)
    known = [*models.list_models(module=models), *video]
    if name not in known:
        raise InvalidInputError(f"torchvision has no classification or video model {name!r}{_near(name, known)}")
    # These two warn unless told whether to initialise.
    options = {"init_weights": True, **options} if name in ("inception_v3", "googlenet") else options
    model = _construct(spec, lambda: models.get_model(name, weights=None, **options))
    side = 299 if name == "inception_v3" else 224
    if name not in video:
        return Parts(model, None, _image(options, 3, side, side))
    side = 224 if name.startswith(("mvit", "swin3d", "s3d")) else 112
    return Parts(model, None, f"{_BATCH}x3x16x{side}x{side}")


def _build_timm(name: str, options: dict[str, Any], spec: str) -> Parts:
    timm = _import("timm")
    known = timm.list_models()
    if name.partition(".")[0] not in known:
        raise InvalidInputError(f"timm has no model {name!r}{_near(name, known)}")
    model = _construct(spec, lambda: timm.create_model(name, pretrained=False, **options))
    size = (getattr(model, "pretrained_cfg", None) or {}).get("input_size") or (3, 224, 224)
    return Parts(model, None, _image(options, int(options.get("in_chans", size[0])), size[1], size[2]))


def _configure(auto: Any, name: str, options: dict[str, Any], spec: str) -> Any:
    """The configuration of a model type, with every option checked against what the type knows."""
    known = list(auto.configuration_auto.CONFIG_MAPPING.keys())
    if name not in known:
        raise InvalidInputError(f"transformers has no model type {name!r}{_near(name, known)}")
    for_model = auto.configuration_auto.AutoConfig.for_model
    refusal = importlib.import_module("huggingface_hub.errors").StrictDataclassError
    plain = _construct(spec, lambda: for_model(name), refusal)
    keys = {*plain.to_dict(), *plain.attribute_map}
    for key in options:
        if key not in keys:
            raise InvalidInputError(f"the configuration of transformers:{name} has no field {key!r}{_near(key, keys)}")
    config = _construct(spec, lambda: for_model(name, **options), refusal)
    if hasattr(config, "use_cache"):
        config.use_cache = False  # a training step keeps no keys and values for later tokens
    return config


def _build_transformers(name: str, options: dict[str, Any], spec: str) -> Parts:
    _import("transformers")
    auto = importlib.import_module("transformers.models.auto")
    options = dict(options)
    attention = options.pop("attn_implementation", None)  # None: scaled_dot_product_attention where the model has it
    config = _configure(auto, name, options, spec)
    modeling = auto.modeling_auto
    heads = (
        (modeling.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, modeling.AutoModelForSeq2SeqLM),
        (modeling.MODEL_FOR_MASKED_LM_MAPPING_NAMES, modeling.AutoModelForMaskedLM),
        (modeling.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, modeling.AutoModelForCausalLM),
        (modeling.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES, modeling.AutoModelForImageClassification),
    )
    chosen = next((head for names, head in heads if name in names), modeling.AutoModel)
    model = _construct(spec, lambda: chosen.from_config(config, attn_implementation=attention))
    first = str(model.main_input_name)
    if first == "pixel_values":
        side = config.image_size if isinstance(getattr(config, "image_size", None), int) else 224
        return Parts(model, None, _image({}, getattr(config, "num_channels", 3), side, side), (first,))
    if first != "input_ids":
        return Parts(model, None, None, (first,))
    text = config.get_text_config()
    most = getattr(text, "max_position_embeddings", None) or 2 * _TOKENS
    default = f"{_BATCH}x{min(_TOKENS, most // 2)}"
    padding = getattr(text, "pad_token_id", None)
    seq2seq = chosen is modeling.AutoModelForSeq2SeqLM
    named = (first, "decoder_input_ids") if seq2seq else (first,)
    default = f"{default},{default}" if seq2seq else default
    return Parts(model, None, default, named, "int", getattr(text, "vocab_size", None), padding)


@contextlib.contextmanager
def _current_folder_first() -> Iterator[None]:
    """Import from the current folder, as `python -m` does."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def load_function(module: str, name: str, spec: str) -> Callable[[], Any]:
    """The function of a module in the current folder, or anywhere that Python finds it."""
    try:
        with _current_folder_first():
            found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is here and misses something itself
        near = _near(module, FAMILIES)
        raise InvalidInputError(
            f"the model {spec!r} names no family and no module {module!r}{near}; {SPEC_FORMS}"
        ) from error
    function = getattr(found, name, None)
    if not callable(function):
        known = [key for key, value in vars(found).items() if callable(value)]
        raise InvalidInputError(f"the module {module!r} has no function {name!r}{_near(name, known)}")
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise InvalidInputError(
            f"{spec} cannot be called without arguments: {error}; write a function that can"
        ) from error
    return function


def call_function(function: Callable[[], Any], spec: str) -> Parts:
    """The model, and the inputs if there are any, that a user's function makes."""
    with _current_folder_first():
        made = function()
    model, args = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise InvalidInputError(
            f"{spec} returned {kind}; it must return a torch.nn.Module, or (module, tuple of inputs)"
        )
    if args is not None and not isinstance(args, tuple):
        args = tuple(args) if isinstance(args, list) else (args,)
    return Parts(model, args, None)


FAMILIES: dict[str, Callable[[str, dict[str, Any], str], Parts]] = {
    "torchvision": _build_torchvision,
    "timm": _build_timm,
    "transformers": _build_transformers,
}
