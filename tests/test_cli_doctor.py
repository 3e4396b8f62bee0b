"""`memsched doctor`: what it says of whole and of broken installations."""

from __future__ import annotations

import errno
import gzip
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import memsched as ms
from memsched import _core, profiles
from memsched.cli.app import command_line

doctor = importlib.import_module("memsched.cli.doctor")
PACKAGES = (
    *("click", "rich", "matplotlib", "highspy", "jinja2", "pandas", "polars", "pyarrow", "tomli", "distributed"),
    *("onnx", "torch"),
)
REQUIRES = [
    "numpy>=1.23",
    'click>=8.1; extra == "cli"',
    'rich>=13; extra == "cli"',
    'matplotlib>=3.7; extra == "cli"',
    'matplotlib>=3.7; extra == "plot"',
    "highspy>=1.15 ; extra == 'ilp'",
    'jinja2>=3.1; extra == "report"',
    'pandas>=2; extra == "sweep"',
    'pyarrow>=14; extra == "sweep"',
    'tomli>=2; python_version < "3.11" and extra == "sweep"',
    'distributed>=2024.1; extra == "dask"',
    'polars>=1; extra == "polars"',
    'onnx>=1.16; extra == "onnx"',
    'torch>=2.13; extra == "torch"',
    'memsched[cli,ilp]; extra == "test"',
]
Install = Callable[..., None]


def run(*arguments: str, status: int = 0) -> Result:
    outcome = CliRunner().invoke(command_line, ["doctor", *arguments], prog_name="memsched")
    assert outcome.exit_code == status, outcome.output
    assert "Traceback" not in outcome.output
    return outcome


def document(status: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("--json", status=status).stdout)
    return found


def line(name: str, text: str) -> str:
    """What the report says of a thing."""
    (found,) = (row for row in text.splitlines() if row.startswith(f"{name} "))
    return found.removeprefix(name).strip()


@pytest.fixture(autouse=True)
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """An environment as the metadata describes it: memsched and numpy alone, until a test installs more."""
    monkeypatch.setenv("COLUMNS", "200")
    there = {"memsched": ms.__version__, "numpy": "2.4.6"}
    monkeypatch.setattr(_core, "__version__", ms.__version__, raising=False)

    def version(name: str) -> str:
        if name not in there:
            raise metadata.PackageNotFoundError(name)
        return there[name]

    def requires(name: str) -> list[str]:
        version(name)
        return REQUIRES

    def put(**versions: str | None) -> None:
        for name, found in versions.items():
            there.pop(name, None)
            if found is not None:
                there[name] = found

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", requires)
    return put


def test_a_bare_installation_works() -> None:
    found = document()
    assert found["problems"] == []
    assert found["memsched"]["version"] == found["memsched"]["installed"] == ms.__version__
    assert found["extension"]["version"] == ms.__version__
    assert Path(found["extension"]["file"]).is_file()
    assert found["profiles"]["chains"] == len(profiles.names())
    assert found["profiles"]["graphs"] == len(profiles.graph_names())
    assert found["cores"]["usable"] <= found["cores"]["all"]
    assert found["torch"] is None
    assert found["self_test"]["passed"]
    assert set(found["extras"]) == set(doctor.EXTRAS)


def test_missing_extras_say_how_to_get_them() -> None:
    text = run().stdout
    for name in ("cli", "ilp", "report", "sweep", "dask", "torch"):
        assert line(f"[{name}]", text) == f"missing: pip install 'memsched[{name}]'"
    assert "CUDA" not in text
    assert line("self test", text).startswith("passed")


def test_part_of_an_extra_is_not_the_extra(install: Install) -> None:
    install(click="8.5.1", rich="15.0.0", highspy="1.15.1")
    text = run().stdout
    assert line("[cli]", text) == "click 8.5.1, rich 15.0.0; missing matplotlib: pip install 'memsched[cli]'"
    assert line("[ilp]", text) == "highspy 1.15.1"


@pytest.mark.parametrize(("found", "good"), [("2.11.3", False), ("3.1", True), ("3.1.1rc1", True), ("10.2", True)])
def test_versions_are_compared_as_numbers(install: Install, found: str, good: bool) -> None:
    install(jinja2=found)
    assert document()["extras"]["report"]["complete"] is good
    said = line("[report]", run().stdout)
    assert said == f"jinja2 {found}" + ("" if good else "; jinja2 needs 3.1 or newer: pip install 'memsched[report]'")


def test_tomli_is_needed_before_python_3_11_only(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(pandas="3.0", pyarrow="20.0")
    monkeypatch.setattr(doctor.sys, "version_info", (3, 10, 13))
    assert "missing tomli" in line("[sweep]", run().stdout)
    monkeypatch.setattr(doctor.sys, "version_info", (3, 11, 0))
    assert line("[sweep]", run().stdout) == "pandas 3.0, pyarrow 20.0"


def test_an_extension_of_another_version_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "__version__", "0.0.9")
    outcome = run(status=1)
    assert line("extension", outcome.stdout).startswith("0.0.9")
    assert outcome.stderr.startswith("error: the compiled extension is of memsched 0.0.9, and the package ")
    assert "pip install --force-reinstall memsched" in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert document(status=1)["problems"]


def test_an_extension_without_a_version_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_core, "__version__")
    assert "older than its own version" in run(status=1).stderr


def test_two_installations_on_top_of_each_other_are_a_problem(install: Install) -> None:
    install(memsched="0.0.1")
    assert f"the sources are memsched {ms.__version__}, and 0.0.1 is installed" in run(status=1).stderr


def test_a_folder_that_is_not_installed_works(install: Install) -> None:
    install(memsched=None)
    text = run().stdout
    assert line("installed", text).startswith("not as a package")
    assert line("[cli]", text) == "unknown to the installed metadata: pip install 'memsched[cli]'"


def test_a_planner_that_fails_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise TypeError("incompatible function arguments")

    monkeypatch.setattr(doctor, "dynprog", broken)
    outcome = run(status=1)
    assert line("self test", outcome.stdout) == "failed: TypeError: incompatible function arguments"
    assert "the self test fails (TypeError: incompatible function arguments)" in outcome.stderr


def test_a_wrong_makespan_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_OPTIMUM", 12.0)
    assert "is 12.75 s, and the known optimum 12.0 s" in run(status=1).stderr


def test_the_optimum_of_the_self_test_is_proven() -> None:
    """The link makes it longer than the ops, and no figure is rounded: all are sums of powers of two."""
    chain = ms.Chain(**doctor._CHAIN)
    bound = ms.bounds(chain, doctor._MEMORY, doctor._BANDWIDTH)
    assert bound.compute < bound.fractional == doctor._OPTIMUM


def test_missing_profiles_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.profiles, "names", lambda: ())
    assert "the shipped profiles cannot be read" in run(status=1).stderr


@pytest.mark.parametrize("damage", [lambda packed: packed[:-9], lambda packed: packed[:12] + b"!!!!" + packed[16:]])
def test_a_damaged_graph_is_a_problem(monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes]) -> None:
    packed = damage(gzip.compress(bytes(range(256)) * 9))
    monkeypatch.setattr(doctor.profiles, "load_graph", lambda name: gzip.decompress(packed))
    assert "the shipped profiles cannot be read" in run(status=1).stderr


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise OSError('libcudart.so.12: cannot open shared object file')", "libcudart.so.12"),
        ("import os; os.abort()", "Python ended with status -6"),
        ("import sys; sys.exit(0)", "Python ended with status 0"),
        ("print('no JSON')", "AttributeError"),
        ("import time; time.sleep(60)", "importing torch took more than 0.5 seconds"),
    ],
)
def test_a_broken_torch_is_told_and_no_more(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    (tmp_path / "torch.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    if "sleep" in code:
        monkeypatch.setattr(doctor, "_TORCH_SECONDS", 0.5)
    install(torch="2.13.0")
    text = run().stdout
    assert line("CUDA", text).startswith("torch does not answer: ")
    assert said in line("CUDA", text)
    assert line("[torch]", text) == "torch 2.13.0"


def test_where_no_process_can_be_started_the_rest_is_told(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    install(torch="2.13.0")
    monkeypatch.setattr(doctor.subprocess, "run", refuse)
    text = run().stdout
    said = line("CUDA", text)
    assert said.startswith(
        f"torch does not answer: no process can be started to query it ({os.strerror(errno.EAGAIN)})"
    )
    assert line("self test", text).startswith("passed")


@pytest.mark.parametrize(
    ("cuda", "count", "said"),
    [
        (None, 0, "none, this torch is built without it"),
        ("12.8", 0, "12.8, and no device"),
        ("12.8", 2, "12.8, NVIDIA H200 (139 GiB), NVIDIA H200 (139 GiB)"),
    ],
)
def test_devices_are_named(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: str | None, count: int, said: str
) -> None:
    (tmp_path / "torch.py").write_text(
        "from types import SimpleNamespace as Space\n"
        f"version = Space(cuda={cuda!r})\n"
        "device = Space(name='NVIDIA H200', total_memory=139 * 2**30)\n"
        f"cuda = Space(device_count=lambda: {count}, get_device_properties=lambda index: device)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    install(torch="2.13.0+cu128")
    assert line("CUDA", run().stdout) == said


def test_the_real_metadata_knows_every_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    needs = doctor._requirements()
    assert {name for wanted in needs.values() for name in wanted} <= set(PACKAGES)
    assert needs["cli"] == {"click": "8.1", "rich": "13", "matplotlib": "3.7"}
    assert all(needs.values())


@pytest.mark.slow
def test_versions_are_read_without_importing_what_is_heavy() -> None:
    code = (
        "import sys; from memsched.cli import doctor; doctor.examine();"
        "print(*sorted(name for name in sys.modules if '.' not in name))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "pandas", "pyarrow", "jinja2", "distributed", "matplotlib", "highspy"} & set(
        done.stdout.split()
    )


def test_an_extension_that_cannot_be_loaded_says_what_to_do() -> None:
    code = "import sys; sys.modules['memsched._core'] = None; import memsched"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "memsched's compiled extension cannot be loaded" in done.stderr
    assert "pip install --force-reinstall memsched" in done.stderr


def test_an_interrupt_while_the_extension_is_loaded_is_one() -> None:
    """pybind11 makes an ImportError of it, and ours said to install again."""
    code = (
        "import importlib\n"
        "def interrupted(name):\n"
        "    raise ImportError('initialization failed') from KeyboardInterrupt()\n"
        "importlib.import_module = interrupted\n"
        "try:\n"
        "    import memsched\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "interrupted\n"
