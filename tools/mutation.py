"""Change one token of the core at a time, in a copy, and see whether a test notices.

    python tools/mutation.py --mutants 60
    python tools/mutation.py --mutants 5 --only cpp/memsched/simulate/simulate.cpp --seed 7

A mutant that every test accepts survives, and is listed: either it changes nothing that can be seen, or a test is
missing. The seed is the date, so that each night brings others. Your own files are never touched: what git knows is
copied, built and changed elsewhere. Needs what builds of the extension and of the C++ tests need, and `memsched[test]`.
"""

from __future__ import annotations

import argparse
import datetime
import io
import json
import math
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import tokenize
import venv
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("arena", "planners/**", "problems", "study/**", "support", "validation")
CORE = ("cpp/memsched/**/*.cpp", "python/memsched/*.py", *(f"python/memsched/{room}/*.py" for room in ROOMS))
MOST_MEMORY = 8 << 30  # bytes of a test process
FIRST = 6  # test files that know most of the mutated file, and run before the others

_SWAPS = {
    **{"<": ("<=", ">"), "<=": ("<", ">="), ">": (">=", "<"), ">=": (">", "<="), "==": ("!=",), "!=": ("==",)},
    **{
        "+": ("-",),
        "-": ("+",),
        "*": ("/",),
        "/": ("*",),
        "&&": ("||",),
        "||": ("&&",),
        "and": ("or",),
        "or": ("and",),
    },
    **{"+=": ("-=",), "-=": ("+=",), "true": ("false",), "false": ("true",), "True": ("False",), "False": ("True",)},
    **{"min": ("max",), "max": ("min",)},
}
_DEFINED = {
    ".py": re.compile(r"^(?:def|class) ([A-Za-z]\w+)", re.M),
    ".h": re.compile(r"\b(?:class |struct |(?=[a-z]\w+\())(\w+)"),
}
_TOKEN = re.compile(
    r'//.*|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])+\'|[A-Za-z_]\w*|\d[\w.\']*|&&|\|\||[<>=!+*/-]=|<<|>>|->|\+\+|--|\S'
)
# A call, or a change of what is there already; what declares a name cannot go.
_STATEMENT = re.compile(
    r"^\s+(?!return|case|using|const |auto |throw|raise|yield)[\w.\[\]>-]+(\(| [+*/-]= |[.\]][^=]* = )"
)


@dataclass(frozen=True)
class Mutant:
    """One change of one line."""

    path: str
    line: int  # from 1
    before: str
    after: str
    kind: str


def _tokens(path: str, line: str) -> Iterator[tuple[int, str]]:
    """Where the tokens of a line begin, without comments, texts and directives."""
    if path.endswith(".py"):
        try:
            for token in tokenize.generate_tokens(io.StringIO(line.strip() + "\n").readline):
                if token.type in (tokenize.OP, tokenize.NAME, tokenize.NUMBER):
                    yield token.start[1] + len(line) - len(line.lstrip()), token.string
        except (tokenize.TokenError, SyntaxError):
            return
    elif not line.lstrip().startswith("#"):
        for found in _TOKEN.finditer(line):
            if not found[0].startswith(("//", '"', "'")):
                yield found.start(), found[0]


def mutants_of(path: str, number: int, line: str) -> list[Mutant]:
    """All changes of a line that the tool knows."""
    found: list[Mutant] = []

    def add(at: int, old: str, new: str, kind: str) -> None:
        found.append(Mutant(path, number, line, line[:at] + new + line[at + len(old) :], kind))

    for at, token in _tokens(path, line):
        apart = line[at - 1 : at] == " " and line[at + len(token) :][:1] == " "  # two operands, and no template
        if token in _SWAPS and (apart or token.isalpha()):
            for new in _SWAPS[token]:
                add(at, token, new, "operator")
        elif re.fullmatch(r"\d+", token):
            for near in (int(token) + 1, int(token) - 1):
                if near >= 0:
                    add(at, token, str(near), "constant")
    if condition := re.match(r"(\s*(?:} else )?(?:if|while) \()(.*)(\) \{)$", line):
        found.append(Mutant(path, number, line, f"{condition[1]}!({condition[2]}){condition[3]}", "condition"))
    if condition := re.match(r"(\s*(?:if|elif|while) )(.*)(:)$", line):
        found.append(Mutant(path, number, line, f"{condition[1]}not ({condition[2]}){condition[3]}", "condition"))
    balanced = line.count("(") == line.count(")") and line.count("[") == line.count("]")
    if balanced and _STATEMENT.match(line) and line.endswith(";" if path.endswith("cpp") else (")", "]", "1")):
        indent = line[: len(line) - len(line.lstrip())]
        found.append(Mutant(path, number, line, indent + (";" if path.endswith("cpp") else "pass"), "statement"))
    return found


def sample(root: Path, count: int, seed: int, only: str | None = None) -> list[Mutant]:
    """So many mutants of random lines, half of them of C++ and half of Python where there are both."""
    chance = random.Random(seed)
    lines: dict[bool, list[list[Mutant]]] = {True: [], False: []}
    for pattern in CORE:
        for file in sorted(root.glob(pattern)):
            path = file.relative_to(root).as_posix()
            if only is not None and not path.startswith(only):
                continue
            text = file.read_text(encoding="utf-8")
            documents = {row for match in re.finditer(r'""".*?"""', text, re.S) for row in _rows(text, match)}
            for number, line in enumerate(text.splitlines(), 1):
                if number not in documents and (one := mutants_of(path, number, line)):
                    lines[path.endswith(".py")].append(one)
    chosen: list[Mutant] = []
    for at, python in enumerate((False, True)):
        share = (count + at) // 2 if lines[not python] else count
        rows = chance.sample(lines[python], min(share, len(lines[python])))
        chosen += [chance.choice(row) for row in rows]
    chance.shuffle(chosen)  # where the time is over before the end, of both there are fewer
    return chosen


def first_tests(root: Path, path: str) -> list[str]:
    """The test files that know a module best: by the rarer of the names in its path and of what it defines."""
    module = root / path
    header = module.with_suffix(".h")
    text = (header if header.is_file() else module).read_text(encoding="utf-8")
    words = {word[:5] for word in re.findall("[a-z]+", path.partition("memsched/")[2].rpartition(".")[0])}
    of_path = [re.compile(rf"(?<![a-z]){word}", re.I) for word in words]  # placement: place, Placement
    defined = {*_DEFINED[".h" if header.is_file() else ".py"].findall(text)}
    texts = {file: file.read_text(encoding="utf-8") for file in sorted((root / "tests").glob("test_*.py"))}
    score = dict.fromkeys(texts, 0.0)
    for name in [*of_path, *(re.compile(rf"\b{one}\b") for one in defined)]:
        known = [file for file, text in texts.items() if name.search(text)]
        for file in known:
            score[file] += math.log(len(texts) / len(known))
            score[file] += math.log(len(texts)) * (name in of_path and name.search(file.stem[5:]) is not None)
    return [f"tests/{file.name}" for file in sorted(texts, key=lambda file: -score[file])[:FIRST]]


def _rows(text: str, match: re.Match[str]) -> range:
    return range(text.count("\n", 0, match.start()) + 1, text.count("\n", 0, match.end()) + 2)


_QUICK = ["-DMEMSCHED_WERROR=OFF", "-DMEMSCHED_UNITY=OFF"]  # mutants warn, and change one file at a time


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))


class Copy:
    """What git knows, in a folder of its own, with a build and an interpreter that knows nothing of yours."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._seconds = seconds
        self._good: dict[str, bool] = {}
        self.root = folder / "tree"
        self.root.mkdir()
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
        ).stdout
        for name in filter(None, listed.decode().split("\0")):
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                (self.root / name).write_bytes((ROOT / name).read_bytes())
        venv.create(folder / "venv", with_pip=False, symlinks=True)
        self.python = folder / "venv" / "bin" / "python"
        (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
        # A folder in a .pth file is searched, but .pth files in it, such as that of an editable install, are not read.
        (site / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
        self._environment = {**os.environ, "PYTHONPATH": str(self.root / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
        build = self.root / "build" / "mutation"
        self._build = ["cmake", "--build", str(build)]
        pybind11 = self._run([str(self.python), "-m", "pybind11", "--cmakedir"], 60)[1].strip()
        options = [
            "-DMEMSCHED_PYTHON=ON",
            "-DMEMSCHED_TESTS=ON",
            f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={self.root / 'python' / 'memsched'}",
        ]
        options += [] if "pybind11_DIR" in os.environ.get("CMAKE_ARGS", "") else [f"-Dpybind11_DIR={pybind11}"]
        options += [f"-DPython_EXECUTABLE={self.python}", *os.environ.get("CMAKE_ARGS", "").split()]
        self._must(["cmake", "-S", str(self.root), "-B", str(build), "-G", "Ninja", *options, *_QUICK])
        self._must(self._build)

    def _run(self, command: list[str], seconds: float) -> tuple[int | None, str]:
        """Exit status and output; None for what takes too long, which ends with all its children."""
        with tempfile.TemporaryFile() as output:
            begun = subprocess.Popen(
                command,
                cwd=self.root,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_limit,
            )
            try:
                status: int | None = begun.wait(seconds)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                if begun.poll() is None:
                    os.killpg(begun.pid, signal.SIGKILL)
                    begun.wait()
            output.seek(0)
            return status, output.read().decode(errors="replace")

    def _must(self, command: list[str]) -> None:
        status, output = self._run(command, 3600)
        if status != 0:
            sys.exit(f"{' '.join(command)} ends with {status}:\n{output[-3000:]}")

    def suites(self, path: str, every: bool, workers: str) -> list[list[str]]:
        """What to run: the tests of C++ for C++, the test files that know the mutated file best, and all."""
        python = [str(self.python), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", workers]
        native = [[f"{self._build[-1]}/memsched_tests", "--abort-after=1"]] if path.endswith(".cpp") else []
        return [*native, [*python, *first_tests(self.root, path)], *([[*python, "tests"]] if every else [])]

    def verdict(self, mutant: Mutant, every: bool, workers: str) -> str:
        """What became of a mutant: "killed", "not built", "hung" or "survived"; "untested" where tests fail anyway."""
        native = mutant.path.endswith(".cpp")
        suites = self.suites(mutant.path, every, workers)
        for tests in suites:
            whole = " ".join(tests)
            if whole not in self._good:
                self._good[whole] = self._run(tests, 4 * self._seconds)[0] == 0
            if not self._good[whole]:
                return "untested"
        file = self.root / mutant.path
        text = file.read_text(encoding="utf-8")
        lines = text.splitlines()
        lines[mutant.line - 1] = mutant.after
        try:
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
            if native and self._run(self._build, self._seconds)[0] != 0:
                return "not built"
            for tests in suites:
                status, _ = self._run(tests, self._seconds)
                if status != 0:
                    return "hung" if status is None else "killed"
            return "survived"
        finally:
            file.write_text(text, encoding="utf-8")
            if native:
                self._must(self._build)


def main() -> int:
    """Try the mutants, and list those that no test notices."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mutants", type=int, default=60)
    parser.add_argument(
        "--seed", type=int, default=int(datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%d"))
    )
    parser.add_argument("--only", help="files whose path begins so")
    parser.add_argument("--first-tests-only", action="store_true", help="without the rest of the fast tests")
    parser.add_argument("--workers", default="auto", help="of pytest-xdist")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no mutant after so many")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for the tests of one mutant: then it hangs")
    parser.add_argument("--json", type=Path, help="write the verdicts here")
    options = parser.parse_args()
    begin = time.monotonic()
    verdicts: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="memsched-mutation-") as folder:
        copy = Copy(Path(folder), options.limit)
        for mutant in sample(copy.root, options.mutants, options.seed, options.only):
            if time.monotonic() - begin > options.seconds:
                break
            verdict = copy.verdict(mutant, not options.first_tests_only, options.workers)
            verdicts.append({**asdict(mutant), "verdict": verdict})
            print(
                f"{verdict:9} {mutant.path}:{mutant.line} ({mutant.kind})",
                f"  - {mutant.before.strip()}",
                f"  + {mutant.after.strip()}",
                sep="\n",
                flush=True,
            )
            if options.json:
                options.json.write_text(json.dumps({"seed": options.seed, "mutants": verdicts}, indent=1) + "\n")
    left = [one for one in verdicts if one["verdict"] == "survived"]
    print(f"seed {options.seed}: {len(verdicts)} mutants, {len(left)} survived")
    for one in left:
        print(f"  {one['path']}:{one['line']}: {str(one['after']).strip()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
