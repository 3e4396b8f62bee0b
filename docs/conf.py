"""The site. Its source is the repository itself, so that a link works on both:

sphinx-build -W --keep-going -c docs . build/site
"""

import re
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer

ROOT = Path(__file__).resolve().parent.parent

project = "memsched"
author = "The memsched authors"
copyright = author
_package = (ROOT / "python" / "memsched" / "__init__.py").read_text(encoding="utf-8")
release = re.findall(r'^__version__ = "(.*)"$', _package, re.M)[0]
version = release
extensions = ["myst_nb"]

root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "bench/README.md",
    "bench/gpu/README.md",
]
exclude_patterns = ["docs/_static"]

myst_heading_anchors = 4  # the anchors that GitHub gives
highlight_language = "none"

# The tutorial is stored without outputs and runs whenever the site is built.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_timeout = 120
nb_merge_streams = True

html_theme = "furo"
pygments_style = "friendly"
pygments_dark_style = "github-dark"
html_title = f"memsched {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_static/root"]  # index.html, which leads to docs/index.html
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1a5fb4", "color-brand-content": "#1a5fb4"},
    "dark_css_variables": {"color-brand-primary": "#78aeed", "color-brand-content": "#78aeed"},
}


def setup(app: Any) -> None:
    """Tables in CSV are shown as they are."""
    app.add_lexer("csv", TextLexer)
