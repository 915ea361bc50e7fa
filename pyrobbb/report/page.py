"""What a page is made of, and the page as HTML: templates by Jinja, charts by Vega, both within the file."""

import base64
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any, ClassVar, TypeAlias

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pyrobbb import __version__
from pyrobbb._support.files import write_text
from pyrobbb.data.images.folders import cache_folder

BUNDLE = "window.vegaEmbed = vegaEmbed;"  # what the page's own script calls


@dataclass(frozen=True)
class Cell:
    """An entry of a table: its words, the number that it sorts by, where it leads, and a line beneath."""

    words: str
    value: float | None = None
    link: str | None = None
    note: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Text:
    """A paragraph, and a command at its end; `tone` is good, bad or empty."""

    words: str
    tone: str = ""
    command: str = ""
    kind: ClassVar[str] = "text"


@dataclass(frozen=True)
class Code:
    """Lines to copy, and what they are."""

    label: str
    words: str
    folded: bool = False
    kind: ClassVar[str] = "code"


@dataclass(frozen=True)
class Table:
    """Columns and rows; the first cell of a row names it."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    folded: bool = False
    sortable: bool = False
    kind: ClassVar[str] = "table"

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers, in any row; never the first, which names the rows."""
        columns = zip(*self.rows, strict=True)
        return [i > 0 and any(cell.value is not None for cell in column) for i, column in enumerate(columns)]


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite chart, and how to read it."""

    heading: str
    spec: dict[str, Any]
    words: str


@dataclass(frozen=True)
class Charts:
    """Charts side by side, and their numbers as a table, unless another part has them."""

    charts: Sequence[Chart]
    table: Table | None = None
    kind: ClassVar[str] = "charts"


@dataclass(frozen=True)
class Picture:
    """A PNG; `words` say what it shows."""

    heading: str
    png: bytes
    words: str

    @property
    def source(self) -> str:
        """The image within its address, as RFC 2397 has it."""
        return "data:image/png;base64," + base64.b64encode(self.png).decode()


@dataclass(frozen=True)
class Pictures:
    """Pictures side by side."""

    pictures: Sequence[Picture]
    kind: ClassVar[str] = "pictures"


@dataclass(frozen=True)
class Example:
    """One input as an image, and the probabilities of its classes, `(class, probability, tone)`."""

    picture: Picture
    facts: Sequence[str]
    bars: Sequence[tuple[str, float, str]]


@dataclass(frozen=True)
class Gallery:
    """Several examples side by side."""

    examples: Sequence[Example]
    kind: ClassVar[str] = "gallery"


Part: TypeAlias = Text | Code | Table | Charts | Pictures | Gallery


@dataclass(frozen=True)
class Section:
    """A heading, a sentence or two, and what follows."""

    heading: str
    words: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Fact:
    """A number of the head of the page, and a line about it."""

    name: str
    value: str
    words: str = ""


@dataclass(frozen=True)
class Page:
    """A whole page; `verdict` is its first sentence."""

    title: str
    lead: str
    verdict: Text | None = None
    facts: Sequence[Fact] = ()
    sections: Sequence[Section] = ()


def render(page: Page) -> str:
    """The page as one HTML document, with its style, script and charts inside."""
    charts = any(part.kind == "charts" for section in page.sections for part in section.parts)
    template = _environment().get_template("page.html.j2")
    return template.render(page=page, vega=vega() if charts else "", version=__version__)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("pyrobbb.report"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters["tied"] = lambda words: re.sub(r"(?<=\d) (?=%)", "\u00a0", words)  # no line ends between
    made.filters["breakable"] = lambda words: Markup("<wbr>").join(re.split(r"(?<=[(,/])(?=\S)", words))
    made.filters["slug"] = lambda words: "-".join(re.findall(r"[^\W_]+", words.lower()))
    return made


@cache
def vega() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script; bundling takes seconds, so the user's cache keeps it."""
    path = cache_folder("report") / f"vega-{version('vl-convert-python')}.js"
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8")
    bundle = str(vl_convert.javascript_bundle(BUNDLE)).replace("</script", "<\\/script")
    with suppress(OSError):  # a home that cannot be written to: bundle it again next time
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, bundle)
    return bundle
