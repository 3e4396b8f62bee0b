"""One self-contained HTML file: styles, scripts and exact figures. It loads nothing from the network."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any

import memsched
from memsched.errors import MemschedError, visible
from memsched.support.documents import plain
from memsched.support.formats import byte_units
from memsched.support.interrupt import optional

SCRIPTS = ("format.js", "tables.js", "plots.js", "plan.js", "lifetimes.js", "addresses.js", "curves.js", "page.js")
PLOTLY = "vendor/plotly-basic.min.js"


def packed(content: str) -> str:
    """A text compressed by gzip, in base64: what a page needs to be small and safe in a script element.

    Examples
    --------
    >>> gzip.decompress(base64.b64decode(packed("a < b"))).decode()
    'a < b'
    """
    return base64.b64encode(gzip.compress(content.encode("utf-8", "replace"), 6, mtime=0)).decode()


def _asset(name: str) -> str:
    return files("memsched.show.report").joinpath(name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """How the page's policy names the only script with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@cache
def _plotly() -> tuple[str, str]:
    """The library packed, and its hash."""
    content = _asset(PLOTLY)
    return packed(content), _hash(content)


def check_jinja() -> Any:
    """The module jinja2; MemschedError if it is not installed."""
    return optional("jinja2", MemschedError("reports need jinja2; pip install 'memsched[report]'"))


def environment() -> Any:
    """The templates: they escape what is put into them, and refuse names that nothing was given for."""
    return _environment(check_jinja())


@cache
def _environment(jinja2: Any) -> Any:
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: _asset(f"templates/{name}")),
        autoescape=True,
        finalize=lambda value: visible(value) if type(value) is str else value,  # what is Markup is ours
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def html_page(template: str, data: dict[str, Any], **values: Any) -> str:
    """A whole page, the same text for the same arguments.

    The template extends page.html and shows the values. The data for page.js is in the page as packed JSON, in the
    element memsched-data.
    """
    head = {"format": "memsched-report/2", "memsched": memsched.__version__, "byte_units": byte_units()}
    document = {**head, **data}
    templates = environment()
    ours = "".join(_asset(name) for name in SCRIPTS)
    plotly, plotly_hash = _plotly()
    text: str = templates.get_template(template).render(
        hashes=f"{plotly_hash} {_hash(ours)}",
        style=_asset("page.css"),
        script=ours,
        plotly=plotly,
        data=packed(json.dumps(plain(document), allow_nan=False, separators=(",", ":"))),
        version=memsched.__version__,
        **values,
    )
    return text
