"""Writes `reference/keys.md`: every key of `experiments/run.yaml`, and every component with its defaults."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import yaml
from sphinx.ext.napoleon import Config, GoogleDocstring

OURS = ("pyrobbb.", "experiments.")
TABLE = "| name | makes | keys, types and defaults |\n|---|---|---|\n"
RECIPES = "| name | what it is |\n|---|---|\n"
HEAD = """# Every key of a run

Written from `experiments/run.yaml`, the components beside it and the docstrings when this page is built.
Set any of them on the command line, `key=value` or `component.key=value`, or in a file of your own.
What a mapping does not have yet is added with a plus, `+rates.rho=10`; so is a key that the tables of
components show with one: `+noise` of `blobs` is `+data.noise=2`. `${initial:}` is `kaiming`, or
`from_network` under `model=trained`.

| key | type | default | meaning |
|---|---|---|---|
"""


def documented(kind: Any) -> dict[str, str]:
    """The `Args:` of a docstring, one line each."""
    lines = GoogleDocstring(inspect.getdoc(kind) or "", Config(napoleon_use_param=True)).lines()
    text = re.sub(r"\n +", " ", "\n".join(lines))
    return dict(re.findall(r"^:param (\w+): (.*)$", text, re.MULTILINE))


def cell(text: str) -> str:
    """Text that does not end its cell."""
    return " ".join(text.split()).replace("|", r"\|")


def run_keys(path: Path) -> str:
    """The keys of a run: the docstring of the option, else the comment beside it."""
    from pyrobbb.experiment import Run
    from pyrobbb.training.options import Options

    said = documented(Options) | documented(Run)
    types = types_of(Options) | types_of(Run)
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        found = re.match(r"(\w+): +(.+?)(?: +# (.*))?$", line)
        if found:
            key, default, comment = found.groups()
            kind = f"`{cell(types[key])}`" if key in types else ""
            rows.append(f"| `{key}` | {kind} | `{default}` | {cell(said.get(key) or comment or '')} |")
    return "\n".join(rows)


def types_of(kind: Any) -> dict[str, str]:
    """The annotations of what can be passed to it, without the modules of their names."""
    given = {name: one.annotation for name, one in inspect.signature(kind).parameters.items()}
    return {
        name: said if isinstance(said, str) else re.sub(r"\b(\w+\.)+", "", inspect.formatannotation(said))
        for name, said in given.items()
        if said is not inspect.Parameter.empty
    }


def summary(target: str) -> str:
    """The first sentence of what a component names."""
    if not target.startswith(OURS):
        return ""
    first = (resolve_name(target).__doc__ or "").strip().split("\n\n")[0]
    return cell(re.sub(r":math:`([^`]*)`", r"$\1$", first))


def unset(kind: Any, said: dict[str, Any]) -> dict[str, Any]:
    """The fields that a file leaves at their defaults, each with a plus; a component by its name."""
    left = [one for one in fields(kind) if one.name not in said] if is_dataclass(kind) else []
    return {
        f"+{one.name}": one.default if one.default_factory is MISSING else one.default_factory.__name__
        for one in left
    }


def component(path: Path) -> str:
    """A row: name, what it makes, its keys with their defaults."""
    said: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    target = said.get("_target_", "")
    keys = {key: value for key, value in said.items() if not key.startswith("_") and key != "defaults"}
    ours = target.startswith(OURS)
    kind = resolve_name(target) if ours else None
    types = types_of(kind) if ours else {}
    shown = ", ".join(
        f"`{key}: {cell(types[name])} = {plain(value)}`" if name in types else f"`{key} = {plain(value)}`"
        for key, value in (keys | unset(kind, said)).items()
        for name in [key.removeprefix("+")]
    )
    what = ": ".join(filter(None, (f"`{target}`", summary(target)))) if target else comment(path)
    return f"| `{path.stem}` | {what} | {shown} |"


def comment(path: Path) -> str:
    """The first sentence of the comment at the head of a file."""
    lines = [line[2:] for line in path.read_text(encoding="utf-8").splitlines() if line[:2] == "# "]
    said = " ".join(line for line in lines if not line.startswith("@package"))
    return cell(re.split(r" Command: |(?<=[.?]) (?=[A-Z])", said)[0])  # "Fig. 5" ends no sentence


def plain(value: Any) -> str:
    """A value as the command line takes it; a component within a component by its last name."""
    if isinstance(value, dict):
        return str(value["_target_"]).rpartition(".")[2] if "_target_" in value else "{...}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return value if isinstance(value, str) else str(value).replace(" ", "")


def write(app: Any) -> None:
    """Write the page."""
    root = Path(app.srcdir).parent / "experiments"
    parts = [HEAD + run_keys(root / "run.yaml")]
    entries = yaml.safe_load((root / "run.yaml").read_text(encoding="utf-8"))["defaults"]
    chosen = {key: name for entry in entries if isinstance(entry, dict) for key, name in entry.items()}
    groups = {key: sorted((root / key).glob("*.yaml")) for key in sorted(chosen)}
    whole = groups.pop("experiment")
    for group, files in groups.items():
        if files:
            rows = "\n".join(map(component, files))
            parts.append(f"## {group}\n\nDefault: `{plain(chosen[group])}`.\n\n{TABLE}{rows}")
    recipes = "\n".join(f"| `{path.stem}` | {comment(path)} |" for path in whole)
    parts.append(f"## experiment\n\nWhole recipes; whatever they set can be set again.\n\n{RECIPES}{recipes}")
    page = Path(app.srcdir) / "reference" / "keys.md"
    text = "\n\n".join(parts) + "\n"
    if not page.exists() or page.read_text(encoding="utf-8") != text:
        page.write_text(text, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    """Write the page before the sources are listed."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
