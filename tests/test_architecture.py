"""Who may know whom (ARCHITECTURE.md), read from the sources."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import memsched
from memsched.planners.registry import PLANNERS as PLANNERS_BY_NAME

PACKAGE = Path(memsched.__file__).parent
ROOT = PACKAGE.parents[1]
CPP = ROOT / "cpp" / "memsched"
MODULES = sorted(
    path.relative_to(PACKAGE.parent).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
)
PLANNERS = "memsched.planners."
SHARED = {"bayes", "recompute"}  # in the folders of planners, which are none
# A planner may use another one only here: offload begins its search with the sets of the other two.
ALLOWED = {
    ("offload", "dynprog"),
    ("offload", "greedy"),
    ("vdnn", "vdnn_sync"),
    ("vdnn_plus", "vdnn_sync"),
}
HEAVY = ("torch", "matplotlib", "highspy", "dask", "click", "rich", "hypothesis", "scipy", "jsonschema")
NEEDS_CPP = pytest.mark.skipif(not CPP.is_dir(), reason="the C++ sources are not here")


def source(module: str) -> str:
    path = PACKAGE.parent / module.replace(".", "/")
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")


def imported(node: ast.stmt, module: str) -> Iterator[str]:
    """Absolute names of the modules (and of the names in them) that an import statement names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        package = module if (PACKAGE.parent / module.replace(".", "/")).is_dir() else module.rpartition(".")[0]
        base = node.module or ""
        if node.level:
            parts = package.split(".")
            base = ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)


@cache
def imports(module: str, *, anywhere: bool) -> frozenset[str]:
    """What a module imports: when it is imported itself, or anywhere."""

    def walk(nodes: list[ast.stmt]) -> Iterator[str]:
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not anywhere:
                continue
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                continue
            yield from imported(node, module)
            for field in ("body", "orelse", "finalbody"):
                yield from walk(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                yield from walk(handler.body)

    return frozenset(walk(ast.parse(source(module)).body))


def uses(module: str, other: str, *, anywhere: bool = True) -> bool:
    return any(name == other or name.startswith(other + ".") for name in imports(module, anywhere=anywhere))


def test_the_reader_of_imports_sees_them() -> None:
    assert uses("memsched.planners.chain.offload", "memsched.planners.chain.dynprog")
    assert uses("memsched", "memsched.profiles", anywhere=False)
    assert not uses("memsched.validation.plan", "memsched._core", anywhere=False)


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("memsched.validation.")])
def test_the_validator_stands_alone(module: str) -> None:
    """It computes all anew; the core only cuts chains into graphs for it, and finds certificates, which it checks."""
    ours = {name for name in imports(module, anywhere=True) if name.startswith("memsched.")}
    core = {name for name in ours if name.startswith("memsched._core")}
    assert all(name.startswith(("memsched.errors", "memsched.validation")) for name in ours - core)
    known = {"", ".to_graph", ".Device", ".Graph", ".Schedule", ".cut_bound", ".cut_flows", ".steady_state"}
    assert core <= ({f"memsched._core{name}" for name in known} if module == "memsched.validation.plan" else set())
    assert not uses(module, "memsched._core", anywhere=False)


def test_only_torch_knows_torch() -> None:
    assert not [module for module in MODULES if not module.startswith("memsched.torch") and uses(module, "torch")]


def test_only_the_integer_programs_know_highs() -> None:
    said = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if '"highspy"' in path.read_text()}
    assert said == {"arena/ilp/model.py"}
    assert not [module for module in MODULES if uses(module, "highspy")]


TORCH = [module for module in MODULES if module.startswith("memsched.torch.")]
# What the PyTorch package may use of the others: the types, the checks, and the planners through `plan` alone.
TORCH_MAY_USE = {
    *(
        "_core",
        "errors",
        "planners.call",
        "planners.graph.selective",
        "planners.registry",
        "problems",
        "result",
        "study.auto",
        "study.fit",
        "support",
    ),
    *("arena.buffers", "arena.placement"),  # to place what a step asks for
    "validation.plan",  # before a plan is run
}


@pytest.mark.parametrize("module", TORCH)
def test_torch_uses_the_common_types_only(module: str) -> None:
    ours = {name.removeprefix("memsched.") for name in imports(module, anywhere=True) if name.startswith("memsched.")}
    others = {name for name in ours if not name.startswith("torch")}
    assert all(any(name == known or name.startswith(known + ".") for known in TORCH_MAY_USE) for name in others)


def test_no_two_modules_know_each_other() -> None:
    """Nor is there a longer circle. A package's own `__init__`, which hands on what its modules have, is left out."""
    modules = {module for module in MODULES if not (PACKAGE.parent / module.replace(".", "/")).is_dir()}
    left = {}
    for module in modules:
        names = imports(module, anywhere=True)  # of modules, or of what is in them
        left[module] = modules & {*names, *(name.rpartition(".")[0] for name in names)} - {module}
    while left:
        free = {module for module, needed in left.items() if not needed}
        assert free, f"these import each other: {sorted(left)}"
        left = {module: needed - free for module, needed in left.items() if module not in free}


def test_heavy_packages_are_imported_where_they_are_needed() -> None:
    """At the top of a module only by packages that `import memsched` does not reach."""
    apart = ("memsched.testing", "memsched.torch", "memsched.cli", "memsched.__main__")
    reached = [module for module in MODULES if not module.startswith(apart)]
    assert not [(module, package) for module in reached for package in HEAVY if uses(module, package, anywhere=False)]


# Room of the package -> those that it may know. A file beside the folders is a room of its own.
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "support": {"errors", "_core"},
    "validation": {"errors", "_core"},
    "problems": {"errors", "_core", "support"},
    "profiles": {"errors", "_core", "support", "problems"},
    "arena": {"errors", "_core", "support", "problems", "validation"},
    "readers": {"errors", "_core", "support", "problems", "arena"},
    "result": {"errors", "_core", "support", "problems", "arena"},
    "planners": {"errors", "_core", "support", "problems", "arena", "result"},
    "study": {"errors", "_core", "support", "problems", "profiles", "arena", "readers", "result", "planners"},
    "show": {"errors", "_core", "support", "validation", "problems", "arena", "result", "planners", "study"},
    "testing": {"errors", "_core", "problems", "support"},
}


def test_one_module_reads_the_tables_of_machines_and_links() -> None:
    files = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".csv")]
    assert [path.parent.name for path in files if path.name in ("machines.csv", "links.csv")] == ["problems"] * 2
    model = re.compile(
        r"""^(FLOPS_SHARE|BANDWIDTH_SHARE|LAUNCH_SECONDS) = |machines\.csv|_rows\("machines""", re.MULTILINE
    )
    assert [path.name for path in files if model.search(path.read_text(encoding="utf-8"))] == ["machines.py"]


def room_of(name: str) -> str:
    return name.split(".")[1]


def test_every_room_has_its_place() -> None:
    assert {room_of(module) for module in MODULES if "." in module} == {*ROOMS, "__main__", "cli", "torch"}
    done: set[str] = {"_core"}
    for room, known in ROOMS.items():
        assert known <= done, room
        done.add(room)


@pytest.mark.parametrize("module", [m for m in MODULES if "." in m and room_of(m) in ROOMS])
def test_rooms_know_those_below_them(module: str) -> None:
    known = {room_of(name) for name in imports(module, anywhere=True) if name.startswith("memsched.")}
    assert known - {"__version__"} <= {room_of(module), *ROOMS[room_of(module)]}


def test_no_public_name_hides_a_module() -> None:
    """`profiles` is a module, and public."""
    names = {path.stem for path in PACKAGE.iterdir()}
    assert names & set(memsched.__all__) == {"profiles"}


def planners_in(names: Iterable[str]) -> set[str]:
    """The planners among names of modules: they lie in folders, and what they share beside these."""
    parts = (name.removeprefix(PLANNERS).split(".") for name in names if name.startswith(PLANNERS))
    return {one[1] for one in parts if one[0] in ("chain", "graph", "remat") and len(one) > 1} - SHARED


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith(PLANNERS)])
def test_planners_know_no_other_planner(module: str) -> None:
    name = module.rpartition(".")[2]
    others = planners_in(imports(module, anywhere=True)) - {name}
    assert {(name, other) for other in others} <= ALLOWED
    assert name == "registry" or not uses(module, f"{PLANNERS}registry")


def test_a_planner_stands_in_its_file_and_in_the_list() -> None:
    files = planners_in(MODULES) - {"pebbles"}  # which serves `plan` alone
    assert files == set(PLANNERS_BY_NAME)
    for name, entry in PLANNERS_BY_NAME.items():
        assert entry.name == name == entry.plan.__name__
        assert entry.plan.__module__.endswith(f".{name}")


def test_import_memsched_stays_light() -> None:
    """It needs numpy only."""
    code = "import memsched, sys; print(*sorted(name.split('.')[0] for name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "numpy" in loaded.split()
    assert not set(HEAVY) & set(loaded.split())


# The core.

STANDARD = {
    *("algorithm", "array", "atomic", "bit", "bitset", "cassert", "cerrno", "cfloat", "climits", "cmath"),
    *(
        "compare",
        "concepts",
        "condition_variable",
        "cstddef",
        "cstdint",
        "cstdio",
        "cstdlib",
        "cstring",
        "deque",
        "exception",
    ),
    *("functional", "initializer_list", "iterator", "limits", "list", "map", "memory", "mutex", "new"),
    *("numbers", "numeric", "optional", "queue", "random", "ranges", "set", "span", "stack", "stdexcept", "string"),
    *("string_view", "system_error", "tuple", "type_traits", "unordered_map", "unordered_set", "utility", "variant"),
    *("vector", "version"),
}
FORBIDDEN = {"fstream", "iostream", "ostream", "filesystem", "chrono", "ctime", "thread", "print", "Python.h"}


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(encoding="utf-8"), re.MULTILINE)


def core_files(pattern: str = "*") -> list[Path]:
    return sorted(path for path in CPP.rglob(pattern) if path.suffix in (".h", ".cpp"))


@NEEDS_CPP
def test_the_core_includes_the_standard_library_and_itself() -> None:
    assert core_files()
    assert not STANDARD & FORBIDDEN
    for path in core_files():
        for name in includes(path):
            own = name.startswith("memsched/") and (CPP.parent / name).is_file()
            threads = name == "thread" and path.name == "parallel.cpp"
            assert own or threads or name in STANDARD, path


@NEEDS_CPP
def test_the_core_prints_nothing_and_reads_no_clock() -> None:
    words = re.compile(r"\b(printf|puts|fopen|cout|cerr|system_clock|steady_clock|getenv|std::time|rand\(\))\b")
    for path in core_files():
        assert not words.search(path.read_text(encoding="utf-8")), path


# Folder of the core -> those that it may know besides itself. The folders of planners know none of each other.
_FOUNDATION = {"support", "model"}
_PLANNER = {*_FOUNDATION, "bounds", "build", "simulate"}
FOLDERS = {
    "support": set[str](),
    "model": {"support"},
    "simulate": _FOUNDATION,
    "bounds": _FOUNDATION,
    "build": {*_FOUNDATION, "simulate"},
    "order": _FOUNDATION,
    "placement": {"support"},
    "planners/offload": _PLANNER,
    "planners/remat": _PLANNER,
    "planners/classes": _PLANNER,
    "planners/modnn": _PLANNER,
    "planners/selective": {*_PLANNER, "order"},
}


@NEEDS_CPP
def test_folders_of_the_core_know_those_below_them() -> None:
    seen = set()
    for path in core_files():
        folder = path.parent.relative_to(CPP).as_posix()
        known = {name.removeprefix("memsched/").rpartition("/")[0] for name in includes(path) if "memsched/" in name}
        assert known <= {folder, *FOLDERS[folder]}, path
        seen.add(folder)
    assert seen == set(FOLDERS)


@NEEDS_CPP
def test_core_planners_know_no_other_planner() -> None:
    """The header of a planner is one that the bindings include; all else in its folder is shared."""
    bindings = (path for path in sorted((CPP.parent / "bindings").iterdir()) if path.is_file())
    planners = {Path(name).stem for path in bindings for name in includes(path) if "/planners/" in name}
    assert {"dynprog", "offload"} <= planners
    for path in core_files():
        if path.parent.parent.name == "planners":
            known = {Path(name).stem for name in includes(path) if "/planners/" in name} & planners
            own = {name for name in planners if name == path.parent.name or f"{path.stem}_".startswith(f"{name}_")}
            assert known <= own, path


@NEEDS_CPP
def test_the_core_has_no_cycle() -> None:
    below: dict[str, list[str]] = {}
    for path in core_files("*.h"):
        name = path.relative_to(CPP.parent).as_posix()
        below[name] = [other for other in includes(path) if other.startswith("memsched/")]
    done: set[str] = set()
    while len(done) < len(below):
        ready = {name for name, needs in below.items() if name not in done and done.issuperset(needs)}
        assert ready, sorted(set(below) - done)
        done |= ready
