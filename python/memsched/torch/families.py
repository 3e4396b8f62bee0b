"""How each family of models is built: torchvision, timm, transformers, and functions of the user's."""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from memsched.errors import InvalidInputError, MemschedError
from memsched.problems.specs import PIP, SPEC_FORMS, ModelSpec, first_on_path, near
from memsched.torch.errors import CallError, line_of, said

_BATCH = 8
_TOKENS = 128
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


def _require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise InvalidInputError(f"this model needs the package {package}, which is not installed; {PIP[package]}")


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
    model = _construct(spec, lambda: timm.create_model(name, pretrained=False, **options))
    size = (getattr(model, "pretrained_cfg", None) or {}).get("input_size") or (3, 224, 224)
    return Parts(model, None, _image(options, int(options.get("in_chans", size[0])), size[1], size[2]))


def _configure(auto: Any, name: str, options: dict[str, Any], spec: str) -> Any:
    """The configuration of a model type, with every option checked against what the type knows."""
    for_model = auto.configuration_auto.AutoConfig.for_model
    refusal = importlib.import_module("huggingface_hub.errors").StrictDataclassError
    plain = _construct(spec, lambda: for_model(name), refusal)
    keys = {*plain.to_dict(), *plain.attribute_map}
    for key in options:
        if key not in keys:
            raise InvalidInputError(f"the configuration of transformers:{name} has no field {key!r}{near(key, keys)}")
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


def own_function(spec: ModelSpec, what: str, forms: str) -> Callable[..., Any]:
    """What a user's module has by a name; it is imported here, from the current folder as `python -m` does."""
    with failing_as(f"the module {spec.family!r} cannot be imported"), first_on_path(spec.folder):
        try:
            module = importlib.import_module(spec.family)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{spec.family}.".startswith(f"{error.name}."):
                raise  # the module is here and misses something itself
            raise InvalidInputError(f"{what} names no module {spec.family!r}; {forms}") from error
    made = getattr(module, spec.name, None)
    if not callable(made):
        own = [key for key, value in vars(module).items() if callable(value)]
        raise InvalidInputError(f"the module {spec.family!r} has no function {spec.name!r}{near(spec.name, own)}")
    return cast("Callable[..., Any]", made)


def _build_own(spec: ModelSpec, text: str) -> Callable[[], Parts]:
    """What makes the model of a user's module.

    A function may return the model, or the model with its inputs; a class is called alike, and a model is taken as it
    is.
    """
    made = own_function(spec, f"the model {text!r}", SPEC_FORMS)
    if isinstance(made, nn.Module):
        if spec.options:
            raise InvalidInputError(f"the model {text!r} gives options to a model that is made already; leave them out")
        return lambda: Parts(copy.deepcopy(made), None, None)
    try:
        inspect.signature(made).bind(**spec.options)
    except TypeError as error:
        raise InvalidInputError(
            f"{text} cannot be called so: {error}; give arguments as in my.module:function?width=64, or write a "
            "function that needs none"
        ) from error
    except ValueError:  # it has no signature, and says what is wrong when it is called
        pass
    return lambda: _called(made, spec, text)


@contextlib.contextmanager
def failing_as(failed: str) -> Iterator[None]:
    """What code of the user's raises, or that it ends the process, is told in a sentence."""
    try:
        yield
    except MemschedError:
        raise
    except (Exception, SystemExit) as error:
        raise CallError(f"{failed}: {type(error).__name__}: {said(error)}{line_of(error)}") from error


def _called(function: Callable[..., Any], spec: ModelSpec, text: str) -> Parts:
    with first_on_path(spec.folder):
        made = function(**spec.options)
    model, args = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise InvalidInputError(
            f"{text} returned {kind}; it must return a torch.nn.Module, or (module, tuple of inputs)"
        )
    if args is not None and not isinstance(args, tuple):
        args = tuple(args) if isinstance(args, list) else (args,)
    return Parts(model, args, None)


def builder_of(spec: ModelSpec, text: str) -> Callable[[], Parts]:
    """What makes the model of a spec; a module of the user's is imported now, not while the model is made."""
    if spec.family in _FAMILIES:
        return lambda: _FAMILIES[spec.family](spec.name, spec.options, text)
    return _build_own(spec, text)


_FAMILIES: dict[str, Callable[[str, dict[str, Any], str], Parts]] = {
    "torchvision": _build_torchvision,
    "timm": _build_timm,
    "transformers": _build_transformers,
}
