"""What Sphinx and Furo leave out for readers with a keyboard or a screen reader, found by axe-core.

Captions of the navigation are headings without a level, and code and tables that scroll sideways cannot be
reached by the keyboard. A figure leads to its file, where a phone shows it in full.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

REPLACED = {
    'role="heading"': 'role="heading" aria-level="2"',
    "<pre>": '<pre tabindex="0">',
    'class="table-wrapper': 'tabindex="0" class="table-wrapper',
}
FIGURE = re.compile(r'<img (?=[^>]*\balt="[^"]+")[^>]*\bsrc="([^"]+)"[^>]*>(?!</a>)')
LATE = 900  # after Furo, which writes the navigation


def complete(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Add the attributes to a page's text and to its navigation."""
    if isinstance(context.get("body"), str):
        context["body"] = FIGURE.sub(r'<a class="picture" href="\1">\g<0></a>', context["body"])
    for part in ("body", "furo_navigation_tree"):
        html = context.get(part)
        if isinstance(html, str):
            for found, instead in REPLACED.items():
                html = html.replace(found, instead)
            context[part] = html


def setup(app: Sphinx) -> dict[str, bool]:
    """Register it with Sphinx."""
    app.connect("html-page-context", complete, priority=LATE)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
