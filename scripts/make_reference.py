"""Writes what is generated from the source: the mesh file's JSON Schema, and the lists in docs/.

`python -m scripts.make_reference` after a key, a default or a metric has changed; tests say when that is due.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry

from scripts.metric_names import metric_names
from scripts.module_lines import module_lines
from scripts.state_tables import state_lines
from services.router.front.measures import Measures
from services.router.front.splice import SpliceMemory
from services.router.front.vocabulary import Vocabulary
from shared.runtime.field_docs import field_docs
from shared.runtime.limits import limit_of
from shared.runtime.meanings import MEANINGS
from shared.runtime.mesh_schema import schema_text
from shared.runtime.reading import headline, is_struct, item_of, walk_sections
from shared.runtime.settings import MeshConfig

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "deploy" / "mesh.schema.json"
OPERATIONS = ROOT / "docs" / "operations.md"
STRUCTURE = ROOT / "docs" / "structure.md"
LIFECYCLE = ROOT / "docs" / "lifecycle.md"
BEGIN, END = "<!-- generated: {} -->", "<!-- end of {} -->"


def main() -> int:
    """Write all files."""
    SCHEMA.write_text(schema_text(), encoding="utf-8")
    for file, makers in DOCUMENTS.items():
        file.write_text(filled(file.read_text(encoding="utf-8"), makers), encoding="utf-8")
    return 0


def filled(text: str, makers: Mapping[str, Callable[[], Iterator[str]]]) -> str:
    """A document with each of its marked sections made anew."""
    for name, lines in makers.items():
        head, begin, rest = text.partition(BEGIN.format(name))
        _, end, tail = rest.partition(END.format(name))
        if not begin or not end:
            raise SystemExit(f"the marks of the section {name!r} are not there: {BEGIN.format(name)}")
        text = f"{head}{begin}\n" + "\n".join(lines()) + f"\n{end}{tail}"
    return text


# --- keys -------------------------------------------------------------------------------------------------


def key_lines() -> Iterator[str]:
    """A table for each section of the mesh file."""
    first: dict[type[msgspec.Struct], str] = {}
    for path, kind in walk_sections(MeshConfig):
        fields = [field for field in msgspec.structs.fields(kind) if not _is_section(field.type)]
        if not fields:
            continue
        yield f"\n#### `{headline(path)}`\n"
        if first.setdefault(kind, path) != path:
            yield f"The keys of `{headline(first[kind])}`."
            continue
        yield f"{_about(kind)}\n"
        yield "| key | default | allowed | meaning |\n|---|---|---|---|"
        texts = field_docs(kind)
        for field in fields:
            allowed = _allowed(kind, field)
            yield f"| `{field.name}` | {_default(field.default)} | {allowed} | {_cell(texts[field.name])} |"


def _is_section(kind: object) -> bool:
    return is_struct(kind) or item_of(kind) is not None


def _about(kind: type[msgspec.Struct]) -> str:
    """A section's docstring without the headline that it may begin or end with."""
    text = " ".join((kind.__doc__ or "").split())
    before, _, after = text.partition("]: ")
    if after:
        text = after
    text = text.partition(": [")[0]
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if before else ""


def _default(value: object) -> str:
    if value is msgspec.NODEFAULT:
        return "required"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int) and value >= 1 << 14 and value % 1024 == 0:
        unit, size = ("MiB", 20) if value % (1 << 20) == 0 else ("KiB", 10)
        return f"`{value}` ({value >> size} {unit})"
    return f"`{value}`" if value != "" else '`""`'


def _allowed(kind: type[msgspec.Struct], field: msgspec.structs.FieldInfo) -> str:
    choices = getattr(field.type, "__args__", ())
    if choices and all(isinstance(choice, str) for choice in choices):
        return ", ".join(f"`{choice}`" for choice in choices)
    limit = limit_of(kind, field.name) if field.type is not bool else None
    return _cell(limit.words()) if limit else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# --- metrics ----------------------------------------------------------------------------------------------


def metric_lines() -> Iterator[str]:
    """All metrics, by who reports them."""
    found = metric_names()
    titles = {"router": "The router", "workers": "Workers", "all": "Every process (sessions and connections)"}
    for reporter, title in titles.items():
        rows = [
            name for name in (*MEANINGS, *(found.keys() - MEANINGS.keys())) if reporter in found.get(name, ())
        ]
        yield f"\n**{title}**\n"
        yield "| metric | meaning |\n|---|---|"
        yield from (f"| `pdd_{name}` | {_cell(MEANINGS.get(name, ''))} |" for name in rows)
        if reporter == "router":
            yield from _front_lines()


def _front_lines() -> Iterator[str]:
    """What the HTTP face measures; these have no labels node and role."""
    registry = CollectorRegistry(auto_describe=False)
    Measures(registry, [SpliceMemory(Vocabulary([], [], {}), max_bytes=0, max_turns=0, ttl=1.0)])
    for metric in registry.collect():
        name = metric.name + ("_total" if metric.type == "counter" else "")
        kind = " (histogram)" if metric.type == "histogram" else ""
        yield f"| `{name}` | {_cell(metric.documentation)}{kind} |"


DOCUMENTS: Mapping[Path, Mapping[str, Callable[[], Iterator[str]]]] = {
    OPERATIONS: {"keys": key_lines, "metrics": metric_lines},
    STRUCTURE: {"modules": module_lines},
    LIFECYCLE: {"states": state_lines},
}


if __name__ == "__main__":
    sys.exit(main())
