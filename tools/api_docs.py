"""Write docs/api.md and docs/api/, the reference of the public names, or check that they are up to date.

    python tools/api_docs.py           writes
    python tools/api_docs.py --check   fails when a page is stale

Signatures and docstrings are read from the sources (of the C++ extension, from _core.pyi). Nothing is imported but the
parameters that many functions share (support/docstrings.py), so the pages do not depend on what is installed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import re
import runpy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "memsched"
DOCS = ROOT / "docs"

INTRODUCTION = """\
# API reference

Written by `tools/api_docs.py` from the docstrings; do not edit. Each table below has the public names of one topic, and
each name leads to its signature, parameters and example. The [guide](guide.md) explains how the parts work together,
[Which planner?](which_planner.md) which planner to call, and the [glossary](glossary.md) explains the words.

`import memsched as ms` is assumed. Bytes are whole numbers, seconds are floats, bandwidths are bytes per second. All
values are immutable, but for the dict `params` of a result. Chains, graphs, devices, schedules, timelines, results,
comparisons, frontiers and sweeps have no hash; all other values have one. Names that are not listed here are internal
and may change.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A page: its file in docs/api, its title, and the groups of names on it."""

    file: str
    title: str
    about: str  # a sentence or two; its links are those of a page in docs/api
    groups: dict[
        str, list[str]
    ]  # heading -> names, as they are reached from memsched; the planners are found by entries


# In the order of the table of contents. Every public name stands in one group.
TOPICS = [
    Topic(
        file="problems",
        title="Problems and devices",
        about="What is planned, and on which device. `save` and `load` write and read them as JSON.",
        groups={
            "Problems": [
                "Chain",
                "Graph",
                "GraphFamily",
                "Device",
                "to_graph",
                "whole_step",
                "update_in_backward",
                "with_host_updates",
                "min_memory",
                "peak_memory",
            ],
        },
    ),
    Topic(
        file="profiles",
        title="Profiles",
        about="A module that `import memsched` brings: real networks, networks by formula, and random chains. "
        "[profiles.md](../profiles.md) says where the figures come from.",
        groups={"Profiles": ["profiles"]},
    ),
    Topic(
        file="planning",
        title="Plan and compare",
        about="Questions that involve more than one planner, or more than one memory.",
        groups={
            "Plan and compare": [
                *(
                    "plan",
                    "evaluate",
                    "compare",
                    "Comparison",
                    "not_asked",
                    "frontier",
                    "Frontier",
                    "feature_map_classes",
                ),
            ],
        },
    ),
    Topic(
        file="planners",
        title="Planners",
        about="Give M (bytes) and beta (bytes per second), or a device; with both, M and beta replace its own."
        " [Which planner?](../which_planner.md) compares them, [algorithms.md](../algorithms.md) says how they work.",
        groups={"Planners of chains": [], "Planners of graphs": []},
    ),
    Topic(
        file="plans",
        title="Plans, checks and bounds",
        about="What a planner returns, how it is timed and checked, and what no plan can beat. "
        "[Which number do I trust?](../which_number.md) explains the figures.",
        groups={
            "Schedules and results": ["Schedule", "Timeline", "Result", "simulate", "validate", "ValidationReport"],
            "Lower bounds": ["bounds", "Bounds"],
        },
    ),
    Topic(
        file="order",
        title="Order and addresses",
        about="The order of the ops with the least peak, and an arena for their tensors. Nothing moves or runs twice.",
        groups={
            "Order and addresses": [
                *("order", "Order", "place", "Buffer", "Placement", "with_addresses", "validate_placement"),
                *("read_buffers", "read_snapshot", "write_placement"),
            ],
        },
    ),
    Topic(
        file="sweeps",
        title="Sweeps",
        about="Many problems, planners, memories and bandwidths in one call. [Examples](../guide.md#sweeps).",
        groups={"Sweeps": ["sweep", "Sweep", "SweepProgress", "read_store", "plan_again"]},
    ),
    Topic(
        file="pictures",
        title="Pictures, reports and traces",
        about="Pictures need matplotlib, reports jinja2: `pip install 'memsched[report]'`.",
        groups={
            "Pictures, reports and traces": [
                *("plot", "plot_addresses", "plot_classes", "plot_frontier", "plot_sweep"),
                *("write_report", "write_sweep_report", "trace"),
            ],
        },
    ),
    Topic(
        file="torch",
        title="PyTorch",
        about="`memsched.torch` is to be imported by name and needs torch: `pip install 'memsched[torch]'`. "
        "[pytorch.md](../pytorch.md) is the guide.",
        groups={"PyTorch": ["torch"]},
    ),
    Topic(
        file="testing",
        title="Tools for tests",
        about="`memsched.testing` is to be imported by name and needs hypothesis.",
        groups={"Tools for tests": ["testing"]},
    ),
    Topic(
        file="errors",
        title="Errors",
        about="What may be raised. Each message is a full sentence, with the number that helps.",
        groups={
            "Errors": [
                *(
                    "MemschedError",
                    "InvalidInputError",
                    "ArgumentError",
                    "InfeasibleError",
                    "ScheduleError",
                    "LimitError",
                ),
                "StoreError",
            ],
        },
    ),
]

NOTES = {
    "Planners of graphs": "They take graphs, families of graphs, and chains as their graphs. Of the planners above, "
    "vdnn, tflms, autoswap and selective take graphs, too.",
}

TYPES = {
    "Problem": "`Chain`, `Graph` or `GraphFamily`.",
    "Planned": "A `Result`, or what has one as `.result`, such as a `TorchPlan`.",
    "ChunkLike": 'None, a number of bytes, a text such as `"16MiB"`, or `"storage"`.',
    "Quantity": 'Bytes, bytes per second or seconds: a number, or a text such as `"6GiB"`, `"12GB/s"` or `"2 ms"`. '
    'Where a problem is given, a memory may be a share such as `"40%"`.',
    "Progress": "None, or a function of a fraction from 0 to 1.",
    "Number": "int, float or a numpy scalar; bytes must be whole. No bool, no str.",
    "Column": "A list, tuple or array of `Number`.",
    "Document": "A JSON object as a dict.",
    "Source": "A dict, a JSON text (it starts with `{`), or the path of a file.",
}

# Names in the sources -> names in the table above.
ALIASES = {
    "_Document | str | os.PathLike[str]": "Source",
    "_Number | str": "Quantity",
    "_Number": "Number",
    "_Column": "Column",
    "_Document": "Document",
    "_Seconds": "NDArray[float64]",
    "_Bytes": "NDArray[int64]",
    "dict[str, Any]": "Document",
    "typing.": "",
    "st.": "",
}

WIDTH = 100
Definition = ast.ClassDef | ast.FunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A public name: how it is reached, and its definition."""

    name: str
    node: Definition


def definitions(path: Path) -> dict[str, Definition]:
    """The classes and functions at the top of a module, with the values of its constants for their defaults."""
    tree, known = ast.parse(path.read_text(encoding="utf-8")), constants(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments):
            node.defaults = [known.get(ast.unparse(one), one) for one in node.defaults]
            node.kw_defaults = [one and known.get(ast.unparse(one), one) for one in node.kw_defaults]
    return {node.name: node for node in tree.body if isinstance(node, Definition)}


@lru_cache
def constants(path: Path) -> dict[str, ast.expr]:
    """What a module gives a name in capitals, or imports by such a name."""
    found: dict[str, ast.expr] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("memsched"):
            named = [alias for alias in node.names if alias.name.isupper()]
            inside = constants(source_of(str(node.module))) if named else {}
            found |= {alias.asname or alias.name: inside[alias.name] for alias in named if alias.name in inside}
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).isupper():
            found[ast.unparse(node.targets[0])] = node.value
    return found


def source_of(module: str) -> Path:
    """The file of memsched's module of this dotted name."""
    if module == "memsched._core":
        return PACKAGE / "_core.pyi"
    path = PACKAGE.parent / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def exported(module: str) -> dict[str, Definition | None]:
    """The names in `__all__` of a package; None stands for a module."""
    found: dict[str, Definition | None] = {}
    more: dict[str, Definition | None] = {}
    body = ast.parse(source_of(module).read_text(encoding="utf-8")).body
    lazily = [inner for node in body if isinstance(node, ast.If) for inner in node.body]  # under TYPE_CHECKING
    for node in (*lazily, *body):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            more = exported(str(node.module))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("memsched"):
            inside = definitions(source_of(str(node.module)))
            found |= {alias.asname or alias.name: inside.get(alias.name) for alias in node.names}
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return {name: found[name] for name in ast.literal_eval(node.value)} | more
    raise SystemExit(f"{module} has no __all__")


def planners() -> dict[str, list[str]]:
    """The names of the planners of each group, in their order."""
    found: dict[str, list[str]] = {"Planners of chains": [], "Planners of graphs": []}
    for name, node in exported("memsched.planners").items():
        assert node is not None
        (entry,) = (one for one in node.decorator_list if isinstance(one, ast.Call))
        kinds = next((ast.literal_eval(one.value) for one in entry.keywords if one.arg == "problems"), ("chain",))
        found["Planners of chains" if "chain" in kinds else "Planners of graphs"].append(name)
    return found


def entries(name: str, public: dict[str, Definition | None]) -> list[Entry]:
    """What a name of TOPICS stands for: itself, a function of a submodule, or all of a submodule."""
    module, _, attribute = name.partition(".")
    if attribute:
        inside: dict[str, Definition | None] = dict(definitions(source_of(f"memsched.{module}")))
        node = inside[attribute]
        return [Entry(name=name, node=node)] if node else []
    node = public.get(name)
    if node is not None:
        return [Entry(name=name, node=node)]
    submodule = f"memsched.{name}"
    inside = exported(submodule) if name in ("testing", "torch") else dict(definitions(source_of(submodule)))
    return [Entry(name=f"{name}.{key}", node=node) for key, node in inside.items() if node and not key.startswith("_")]


def text_of(node: ast.expr | None) -> str:
    """Source of an annotation or a default, with the aliases by their plain names."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return json.dumps(node.value)
    text = "" if node is None else ast.unparse(node)
    for private, plain in ALIASES.items():
        text = text.replace(private, plain)
    return text


def parameters(function: ast.FunctionDef, *, method: bool) -> Iterator[str]:
    """The arguments of a function as they are written, self left out."""
    listed = function.args
    positional = [*listed.posonlyargs, *listed.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(listed.defaults)) + [*listed.defaults]
    pairs = list(zip(positional, defaults, strict=True))[1 if method else 0 :]
    if any(ast.unparse(decorator) == "st.composite" for decorator in function.decorator_list):
        pairs = pairs[1:]  # hypothesis gives `draw`
    for argument, default in pairs:
        yield parameter(argument, default)
    if listed.kwonlyargs:
        yield "*"
    for argument, default in zip(listed.kwonlyargs, listed.kw_defaults, strict=True):
        yield parameter(argument, default)


def parameter(argument: ast.arg, default: ast.expr | None) -> str:
    kind = text_of(argument.annotation)
    if argument.arg == "chunk":
        kind = kind.replace("Quantity | None", "ChunkLike")
    written = f"{argument.arg}: {kind}" if kind else argument.arg
    if default is None:
        return written
    return f"{written} = {text_of(default)}" if kind else f"{written}={text_of(default)}"


def call(
    name: str, function: ast.FunctionDef, *, method: bool = False, returns: bool = True, width: int | None = WIDTH
) -> str:
    """A signature on one line, or one line an argument where it is wider."""
    shown = text_of(function.returns)
    if any(ast.unparse(decorator) == "st.composite" for decorator in function.decorator_list):
        shown = f"SearchStrategy[{shown}]"
    arrow = f" -> {shown}" if returns and shown else ""
    given = list(parameters(function, method=method))
    line = f"{name}({', '.join(given)}){arrow}"
    if width is None or len(line) <= width:
        return line
    return "\n".join([f"{name}(", *(f"    {argument}," for argument in given), f"){arrow}"])


def escaped(text: str) -> str:
    """Markdown's special characters outside of code, taken literally."""
    parts = re.split(r"(`+[^`]*`+)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*<])(?=\S)", r"\\\1", part) for part in parts)


def paragraphs(lines: list[str]) -> str:
    """One line a paragraph, so that no line begins with a sign that Markdown takes for a list."""
    blocks = re.split(r"\n\s*\n", "\n".join(lines).strip())
    return "\n\n".join("\n".join(joined(block)) for block in blocks if block)


def joined(block: str) -> list[str]:
    """The line of a paragraph, or those of a list, whose items begin with a star."""
    found: list[str] = []
    for line in block.splitlines():
        if line.startswith("* ") or not found:
            found.append(line.strip())
        else:
            found[-1] += f" {line.strip()}"
    return [f"- {escaped(line[2:])}" if line.startswith("* ") else escaped(line) for line in found]


def sections(docstring: str) -> dict[str, list[str]]:
    """A docstring in numpy's form, by section; the text before the first one is under ""."""
    lines = docstring.splitlines()
    found: dict[str, list[str]] = {"": []}
    current = ""
    for index, line in enumerate(lines):
        following = lines[index + 1] if index + 1 < len(lines) else ""
        if line and not line.startswith(" ") and re.fullmatch(r"-{3,}", following):
            current = line
            found[current] = []
        elif not re.fullmatch(r"-{3,}", line):
            found[current].append(line)
    return found


def items(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Heads at the margin, and the indented lines under each."""
    head: str | None = None
    body: list[str] = []
    for line in lines:
        if line.strip() and not line.startswith(" "):
            if head is not None:
                yield head, body
            head, body = line, []
        else:
            body.append(line)
    if head is not None:
        yield head, body


def bullet(head: str, body: list[str]) -> str:
    """A line of a list: what it is about in code, its type, and its text."""
    names, separator, kind = head.partition(" : ")
    label = f"`{head}`"
    if separator or re.fullmatch(r"\w+(, \w+)*", head):
        label = ", ".join(f"`{name}`" for name in names.split(", "))
    if separator:
        label += f" ({escaped(kind)})"
    text = paragraphs(body).replace("\n\n", " ")
    return f"- {label}: {text}" if text else f"- {label}"


def rendered(docstring: str) -> Iterator[str]:
    """The sections of a docstring as Markdown blocks."""
    for title, lines in sections(docstring).items():
        if not any(line.strip() for line in lines):
            continue
        if title == "":
            yield paragraphs(lines)
        elif title == "Examples":
            example = re.sub(r" *# doctest: .*", "", "\n".join(lines).strip("\n"))
            yield f"**Example**\n\n```pycon\n{example}\n```"
        elif title in ("References", "Notes"):
            yield f"**{title}.** {paragraphs(lines)}"
        else:
            yield f"**{title}**\n\n" + "\n".join(bullet(head, body) for head, body in items(lines))


@lru_cache
def shared_docstrings() -> dict[str, Any]:
    """What is said in one place of parameters and errors that many functions share."""
    return runpy.run_path(str(PACKAGE / "support" / "docstrings.py"))


def docstring_of(node: Definition) -> str:
    """A docstring, with the shared parameters where the decorator adds them."""
    text = ast.get_docstring(node) or ""
    shared = shared_docstrings()
    for one in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
        name = ast.unparse(one.func if isinstance(one, ast.Call) else one)
        if name in shared["RAISED_BY"]:
            arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            text = str(shared["completed"](text, [argument.arg for argument in arguments], name))
    return text


def is_property(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator) in ("property", "_Load") for decorator in function.decorator_list)


def first_line(function: ast.FunctionDef) -> str:
    return escaped((ast.get_docstring(function) or "").partition("\n")[0])


@lru_cache
def shared_classes() -> dict[str, ast.ClassDef]:
    """The classes of support/ by name, from which public classes have methods."""
    found: dict[str, ast.ClassDef] = {}
    for path in sorted((PACKAGE / "support").glob("*.py")):
        found |= {name: node for name, node in definitions(path).items() if isinstance(node, ast.ClassDef)}
    return found


def methods_of(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    """The public methods of a class by name: its own, then those of its bases in support/ that are not abstract."""
    own = [item for item in node.body if isinstance(item, ast.FunctionDef) and not item.name.startswith("_")]
    found = {item.name: item for item in own}
    for base in (shared_classes().get(ast.unparse(one)) for one in node.bases):
        for name, item in methods_of(base).items() if base is not None else ():
            if not any(ast.unparse(decorator) == "abstractmethod" for decorator in item.decorator_list):
                found.setdefault(name, item)
    return found


def members(node: ast.ClassDef, documented: set[str]) -> Iterator[str]:
    """Fields and properties that the docstring leaves out, and methods."""
    methods = list(methods_of(node).values())
    kinds = {item.name: text_of(item.returns) for item in methods if is_property(item)}
    about = {item.name: first_line(item) for item in methods}
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and not ast.unparse(item.target).startswith("_"):
            kinds.setdefault(ast.unparse(item.target), text_of(item.annotation))
    lines = []
    for name in (name for name in kinds if name not in documented):
        label = f"- `{name}` ({escaped(kinds[name])})"
        lines.append(f"{label}: {about[name]}" if about.get(name) else label)
    if lines:
        yield "**Properties**\n\n" + "\n".join(lines)
    lines = []
    for item in methods:
        if not is_property(item):
            static = any(ast.unparse(decorator) == "staticmethod" for decorator in item.decorator_list)
            lines.append(f"- `{call(item.name, item, method=not static, width=None)}`: {about[item.name]}")
    if lines:
        yield "**Methods**\n\n" + "\n".join(lines)


# Methods of classes of the core that a function of Python is behind, which has the docstring.
BEHIND = {
    "Chain.from_csv": ("readers/csv_files.py", "chain_from_csv"),
    "Chain.from_frame": ("readers/tables.py", "chain_from_frame"),
    "Graph.from_networkx": ("readers/digraph.py", "graph_from_networkx"),
    "Graph.from_onnx": ("readers/onnx/model.py", "graph_from_onnx"),
}


def with_methods(entry: Entry) -> Iterator[Entry]:
    """An entry, and after a class of the core those of its methods that have a docstring in full."""
    yield entry
    for name, method in methods_of(entry.node).items() if isinstance(entry.node, ast.ClassDef) else ():
        if f"{entry.name}.{name}" in BEHIND:
            path, function = BEHIND[f"{entry.name}.{name}"]
            full = copy.copy(method)
            full.body = definitions(PACKAGE / path)[function].body
            yield Entry(name=f"{entry.name}.{name}", node=full)


def constructor(node: ast.ClassDef) -> ast.FunctionDef | None:
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return item
    return None


def entry_blocks(entry: Entry, level: str) -> Iterator[str]:
    """One public name: heading, signature, docstring, members."""
    node = entry.node
    docstring = docstring_of(node)
    if not docstring:
        raise SystemExit(f"memsched.{entry.name} has no docstring; write one, the API reference is made of them")
    yield f"{level} `{entry.name}`"
    spelled = f"ms.{entry.name}" if not entry.name.startswith(("plot.", "trace.", "testing.")) else entry.name
    if isinstance(node, ast.FunctionDef):
        yield f"```py\n{call(spelled.rpartition('.')[2] if spelled == entry.name else spelled, node)}\n```"
        yield from rendered(docstring)
        return
    made = constructor(node)
    raised = any(ast.unparse(base).endswith("Error") or ast.unparse(base) == "Exception" for base in node.bases)
    if made is not None and not raised:
        yield f"```py\n{call(spelled, made, method=True, returns=False)}\n```"
    if node.bases and raised:
        yield "Derives from " + ", ".join(f"`{ast.unparse(base)}`" for base in node.bases) + "."
    yield from rendered(docstring)
    listed = sections(docstring).get("Attributes", [])
    documented = {name for head, _ in items(listed) for name in head.partition(" : ")[0].split(", ")}
    yield from members(node, documented)


def anchors(titles: list[str]) -> list[str]:
    """The links that GitHub gives to headings, in the order of the page."""
    seen: dict[str, int] = {}
    found = []
    for title in titles:
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        found.append(f"{slug}-{count}" if count else slug)
    return found


def listed_topics() -> list[Topic]:
    """The topics with the planners in their groups; every public name is in one."""
    found = planners()
    topics = [
        replace(topic, groups={key: found.get(key, names) for key, names in topic.groups.items()}) for topic in TOPICS
    ]
    known = {name for topic in topics for names in topic.groups.values() for name in names}
    missing = sorted(set(exported("memsched")) - known)
    if missing:
        raise SystemExit(f"memsched.{missing[0]} is in no group; add it to TOPICS in tools/api_docs.py")
    return topics


def summary(entry: Entry) -> str:
    """The first line of a docstring, for a cell of a table."""
    return escaped(docstring_of(entry.node).partition("\n")[0]).replace("|", "\\|")


def topic_page(topic: Topic, public: dict[str, Definition | None]) -> tuple[str, list[str]]:
    """A page of docs/api, and the rows of its names for the table in docs/api.md."""
    pages = {
        key: [one for name in names for entry in entries(name, public) for one in with_methods(entry)]
        for key, names in topic.groups.items()
    }
    several = len(pages) > 1  # a page of one group has no headings but those of the names
    titles = [topic.title]
    for group, listed in pages.items():
        titles += [*([group] if several else []), *(entry.name for entry in listed)]
    links = iter(anchors(titles)[1:])
    contents: list[str] = []
    rows: list[str] = []
    blocks: list[str] = []
    for group, listed in pages.items():
        start = f"[{group}](#{next(links)}): " if several else ""
        found = [(entry, next(links)) for entry in listed]
        contents.append(start + ", ".join(f"[`{entry.name}`](#{anchor})" for entry, anchor in found))
        blocks += [*([f"## {group}"] if several else []), *([NOTES[group]] if group in NOTES else [])]
        for entry, anchor in found:
            link = f"[`{entry.name}`](api/{topic.file}.md#{anchor})"
            rows.append(f'| <a id="{anchor}"></a>{link} | {summary(entry)} |')
            blocks += entry_blocks(entry, "###" if several else "##")
    listing = "\n".join(f"- {line}" for line in contents) if several else contents[0]
    back = "[All topics](../api.md) · [Types in the signatures](../api.md#types-in-the-signatures)"
    return "\n\n".join([f"# {topic.title}", back, topic.about, listing, *blocks]) + "\n", rows


def generate() -> dict[str, str]:
    """All pages, by their paths in docs."""
    public = exported("memsched")
    topics = listed_topics()
    pages = {}
    blocks = [INTRODUCTION.strip()]
    for topic in topics:
        path = f"api/{topic.file}.md"
        pages[path], rows = topic_page(topic, public)
        table = "\n".join(["| name | what it is |", "|---|---|", *rows])
        blocks += [f"## [{topic.title}]({path})", topic.about.replace("](../", "]("), table]
    types = "\n".join(["| name | meaning |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in TYPES.items())])
    tree = "\n".join(
        ["```{toctree}", ":hidden:", ":titlesonly:", "", *(f"api/{topic.file}" for topic in topics), "```"]
    )
    return {"api.md": "\n\n".join([*blocks, "## Types in the signatures", types, tree]) + "\n", **pages}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the API reference.")
    parser.add_argument("--check", action="store_true", help="fail when a page is stale instead of writing it")
    check = parser.parse_args().check
    pages = {DOCS / path: text for path, text in generate().items()}
    others = sorted(set((DOCS / "api").glob("*.md")) - set(pages))  # of topics that are gone
    if not check:
        (DOCS / "api").mkdir(exist_ok=True)
        for path, text in pages.items():
            path.write_text(text, encoding="utf-8")
        for path in others:
            path.unlink()
        return
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in [*stale, *others][:1]:
        raise SystemExit(
            f"docs/{path.relative_to(DOCS).as_posix()} is stale: a signature or a docstring has changed; "
            "run: python tools/api_docs.py"
        )


if __name__ == "__main__":
    main()
