"""The documentation site: `make docs`. Pages are Markdown (MyST), the API is read from the docstrings."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent), str(DOCS / "_extensions")]

from pyrobbb import __version__  # noqa: E402

project = "pyrobbb"
author = "The pyrobbb developers"
copyright = author
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.apidoc",
    "sphinx_copybutton",
    "accessible",
    "mathml",
    "plain_docstrings",
    "yaml_reference",
]
exclude_patterns = ["_extensions", "records"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # output of commands, in blocks without a language
default_role = "literal"  # docstrings write `name` as Markdown does
highlight_language = "none"

autodoc_default_options = {"ignore-module-all": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
apidoc_modules = [
    {
        "path": "../pyrobbb",
        "destination": "reference/api",
        "exclude_patterns": ["../pyrobbb/_support/**"],
        "separate_modules": True,
        "module_first": True,
        "include_private": False,
        "automodule_options": {"members", "show-inheritance"},
    }
]

html_theme = "furo"
html_title = f"pyrobbb {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_math_renderer = "mathml"
copybutton_exclude = ".linenos, .gp, .go"
