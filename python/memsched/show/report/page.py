"""One self-contained HTML file: styles, scripts and exact figures. It loads nothing from the network."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files
from typing import Any

from memsched.errors import MemschedError
from memsched.support.documents import plain
from memsched.support.interrupt import optional

SCRIPTS = ("format.js", "tables.js", "plots.js", "plan.js", "curves.js", "page.js")


def json_for_script(value: Any) -> str:
    """JSON that is safe in a script element, whatever names it holds.

    Examples
    --------
    >>> json_for_script({"name": "</script>&", "bandwidth": float("inf")})
    '{"name":"\\\\u003c/script\\\\u003e\\\\u0026","bandwidth":"inf"}'
    """
    text = json.dumps(plain(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return files("memsched.show.report").joinpath(name).read_text(encoding="utf-8")


def check_plotly() -> Any:
    """The module plotly.offline; MemschedError if plotly is not installed."""
    return optional("plotly.offline", MemschedError("reports need plotly; pip install 'memsched[report]'"))


def _script(text: str) -> tuple[str, str]:
    """A script element, and the hash by which the page's policy allows only this script."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"<script>{text}</script>", f"'sha256-{digest}'"


def html_page(title: str, body: str, data: dict[str, Any]) -> str:
    """A whole page, the same text for the same arguments.

    The title is plain text; the body is HTML, in which the caller has escaped foreign text. The data for page.js is in
    the page as JSON, in the element memsched-data.
    """
    plotly, plotly_hash = _script(check_plotly().get_plotlyjs())
    ours, our_hash = _script("".join(_asset(name) for name in SCRIPTS))
    policy = (
        f"default-src 'none'; script-src {plotly_hash} {our_hash}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{_asset('page.css')}</style>\n</head>\n<body>\n"
        f"{body}\n"
        f'<script type="application/json" id="memsched-data">{json_for_script(data)}</script>\n'
        f"{plotly}\n{ours}\n</body>\n</html>\n"
    )


def frame(content: str, version: str) -> str:
    """The header and footer that all pages share, around their content."""
    return (
        '<header class="top"><span class="brand">memsched</span><span class="what">report</span>'
        '<button type="button" id="theme" title="Light or dark">'
        '<span aria-hidden="true">◐</span> <span class="words">theme</span></button></header>\n'
        "<noscript><p>Pictures, and tables beyond their first rows, need JavaScript.</p></noscript>\n"
        f"<main>\n{content}\n</main>\n"
        f"<footer>Written by memsched {escape(version)}. Hover over a figure to see its exact value; all figures "
        "are in this page as JSON, in the element <code>memsched-data</code>. "
        "Nothing was loaded from the network.</footer>\n"
        '<div id="tip" role="tooltip" hidden></div>'
    )


def card(title: str, content: str, note: str = "") -> str:
    """A section of a page; the title is plain text, the rest HTML."""
    said = f'<p class="note">{note}</p>' if note else ""
    return f'<section class="card"><h2>{escape(title)}</h2>{said}{content}</section>'


def figure(kind: str, of: int | str) -> str:
    """A place for page.js to draw, with a legend."""
    return f'<ul class="legend" hidden></ul><div class="figure {kind}" data-figure="{kind}" data-of="{of}"></div>'
