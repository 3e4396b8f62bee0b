"""`memsched doctor`."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import subprocess
import sys
import time
import zlib
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import click

import memsched
from memsched import _core, profiles
from memsched.cli.inputs import json_option, quiet_option
from memsched.cli.show import answer, complain, facts
from memsched.errors import MemschedError
from memsched.planners.chain.dynprog import dynprog
from memsched.problems import discretize
from memsched.problems.problem import simulate
from memsched.support.formats import format_bytes, format_seconds
from memsched.validation.plan import validate

EXTRAS = ("cli", "plot", "report", "sweep", "polars", "dask", "ilp", "onnx", "torch")
AGAIN = "install memsched again: pip install --force-reinstall memsched, or pip install -e . in a checkout"

_COMPILED = (".so", ".pyd")
_TORCH_SECONDS = 120
# Run in a separate process, so that a broken PyTorch or driver cannot stop the doctor.
_ASK_TORCH = """
import json, torch
count = torch.cuda.device_count()
devices = [torch.cuda.get_device_properties(index) for index in range(count)]
print(json.dumps({
    "cuda": torch.version.cuda,
    "devices": [{"name": device.name, "bytes": device.total_memory} for device in devices],
}))
"""
_REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:\[[^]]*\])?\s*([^;]*)(?:;(.*))?")
_PYTHON = re.compile(r"""python_version\s*<\s*["'](\d+)\.(\d+)["']""")

# With 28 bytes and 4 bytes per second the lower bound is 12.75 seconds, and a plan of whole tensors reaches it.
_CHAIN: dict[str, Any] = {
    "forward_time": [1, 2, 2],
    "backward_time": [2, 3, 2],
    "activation": [4, 6, 5, 3],
    "gradient": [0, 6, 5, 3],
    "saved": [9, 7, 5],
}
_MEMORY, _BANDWIDTH, _OPTIMUM = 28, 4.0, 12.75

# Errors that a core of another version may raise.
_FAULTS = (MemschedError, ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)


def _installed(package: str) -> str | None:
    """The version of an installed package, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, which suffice to tell whether a package is too old."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _requirements() -> dict[str, dict[str, str]]:
    """The requirements of each extra on this Python, package -> least version, from memsched's metadata."""
    found: dict[str, dict[str, str]] = {name: {} for name in EXTRAS}
    try:
        listed = metadata.requires("memsched") or []
    except metadata.PackageNotFoundError:
        return found
    for line in listed:
        parsed = _REQUIREMENT.match(line)
        extra = re.search(r"""extra\s*==\s*["']([\w-]+)["']""", line)
        if parsed is None or extra is None or extra[1] not in found:
            continue
        below = _PYTHON.search(line)
        if below is None or sys.version_info[:2] < (int(below[1]), int(below[2])):
            least = re.search(r">=\s*([\w.]+)", parsed[2])
            found[extra[1]][parsed[1]] = least[1] if least else "0"
    return found


def _extra(name: str, needs: dict[str, str]) -> dict[str, Any]:
    """The packages of an extra, and whether all are installed and new enough."""
    versions = {package: _installed(package) for package in needs}
    old = [package for package, found in versions.items() if found and _numbers(found) < _numbers(needs[package])]
    return {
        "packages": versions,
        "old": {package: f"needs {needs[package]} or newer" for package in old},
        "complete": bool(versions) and None not in versions.values() and not old,
        "remedy": f"pip install 'memsched[{name}]'",
    }


def _ask_torch() -> dict[str, Any]:
    """CUDA and devices as PyTorch reports them, or why it does not answer."""
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _ASK_TORCH], capture_output=True, text=True, timeout=_TORCH_SECONDS, check=False
        )
        answer: dict[str, Any] = json.loads(asked.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"problem": f"importing torch took more than {_TORCH_SECONDS} seconds"}
    except OSError as error:
        return {"problem": f"no process can be started to query it ({error.strerror or error}); end some and try again"}
    except (IndexError, ValueError):
        lines = asked.stderr.strip().splitlines()
        return {"problem": lines[-1] if lines else f"Python ended with status {asked.returncode}"}
    return answer


def _self_test() -> dict[str, Any]:
    """Plan a chain with a known optimum; simulate and check the plan."""
    began = time.perf_counter()
    try:
        chain = memsched.Chain(**_CHAIN, name="self test")
        result = dynprog(chain, _MEMORY, _BANDWIDTH, slots=100)
        timed = simulate(result.graph, result.schedule, result.device)
        checked = validate(result)
    except _FAULTS as error:
        return {"passed": False, "problem": f"{type(error).__name__}: {error}"}
    figures = {
        "makespan of the plan": result.makespan,
        "simulated makespan": timed.makespan,
        "makespan that the validator finds": checked.makespan,
        "lower bound": result.lower_bound,
    }
    for name, seconds in figures.items():
        if not math.isclose(seconds, _OPTIMUM, rel_tol=1e-9):
            return {"passed": False, "problem": f"the {name} is {seconds} s, and the known optimum {_OPTIMUM} s"}
    if checked.peak_memory > _MEMORY:
        return {"passed": False, "problem": f"the plan holds {checked.peak_memory} bytes of {_MEMORY}"}
    return {"passed": True, "planner": "dynprog", "makespan": result.makespan, "seconds": time.perf_counter() - began}


def _profiles() -> dict[str, Any]:
    """The location and number of the shipped profiles, and whether one can be read."""
    found: dict[str, Any] = {"folder": str(resources.files("memsched.problems") / "chains"), "chains": 0, "graphs": 0}
    try:
        names = profiles.names()
        found["chains"] = len(names)
        found["graphs"] = len(profiles.graph_names())
        profiles.load(names[0])
        profiles.load_graph(names[0])
    except (*_FAULTS, EOFError, zlib.error) as error:
        found["problem"] = f"{type(error).__name__}: {error}"
    return found


def examine() -> dict[str, Any]:
    """The output of `memsched doctor` as a document."""
    extras = {name: _extra(name, needs) for name, needs in _requirements().items()}
    torch = _installed("torch")
    module = str(discretize.__file__)
    cores = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    found: dict[str, Any] = {
        "memsched": {
            "version": memsched.__version__,
            "installed": _installed("memsched"),
            "folder": str(Path(memsched.__file__).parent),
        },
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": sys.executable,
        },
        "platform": platform.platform(),
        "cores": {"all": cores, "usable": usable},
        "numpy": _installed("numpy"),
        "extension": {"file": str(_core.__file__), "version": getattr(_core, "__version__", None)},
        "discretize": {"file": module, "compiled": module.endswith(_COMPILED)},
        "profiles": _profiles(),
        "extras": extras,
        "torch": None if torch is None else {"version": torch, **_ask_torch()},
        "self_test": _self_test(),
    }
    found["problems"] = list(_problems(found))
    return found


def _problems(found: dict[str, Any]) -> list[str]:
    """What keeps the core from working, with remedies. Missing extras are not a problem."""
    version, installed = found["memsched"]["version"], found["memsched"]["installed"]
    built = found["extension"]["version"]
    problems = []
    if installed is not None and installed != version:
        problems.append(f"the sources are memsched {version}, and {installed} is installed; {AGAIN}")
    if built != version:
        built = f"of memsched {built}" if built else "older than its own version"
        problems.append(f"the compiled extension is {built}, and the package {version}; {AGAIN}")
    if "problem" in found["profiles"]:
        problems.append(f"the shipped profiles cannot be read ({found['profiles']['problem']}); {AGAIN}")
    if not found["self_test"]["passed"]:
        problems.append(f"the self test fails ({found['self_test']['problem']}); {AGAIN}, or report it")
    return problems


def _packages(extra: dict[str, Any]) -> str:
    """The line for an extra: versions, or a remedy."""
    if not extra["packages"]:
        return f"unknown to the installed metadata: {extra['remedy']}"
    there = [f"{package} {version}" for package, version in extra["packages"].items() if version]
    gone = [package for package, version in extra["packages"].items() if not version]
    faults = [f"{package} {text}" for package, text in extra["old"].items()]
    if gone:
        faults.append(f"missing {', '.join(gone)}" if there else "missing")
    shown = ", ".join(there)
    return shown if extra["complete"] else "; ".join(filter(None, [shown, f"{', '.join(faults)}: {extra['remedy']}"]))


def _accelerator(torch: dict[str, Any]) -> str:
    if "problem" in torch:
        return f"torch does not answer: {torch['problem']}"
    if torch["cuda"] is None:
        return "none, this torch is built without it"
    names = ", ".join(f"{device['name']} ({format_bytes(device['bytes'])})" for device in torch["devices"])
    return f"{torch['cuda']}, {names or 'and no device'}"


def _rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    python, cores, test = found["python"], found["cores"], found["self_test"]
    shipped, compiled = found["profiles"], found["discretize"]["compiled"]
    module = Path(found["discretize"]["file"]).name
    rows = [
        ("Python", f"{python['version']} ({python['implementation']}), {python['executable']}"),
        ("platform", found["platform"]),
        ("cores", f"{cores['usable']} of {cores['all']}"),
        ("numpy", found["numpy"] or "of unknown version"),
        ("memsched", f"{found['memsched']['version']} in {found['memsched']['folder']}"),
        ("installed", found["memsched"]["installed"] or "not as a package: it is imported from its folder"),
        ("extension", f"{found['extension']['version'] or 'unknown'}, {Path(found['extension']['file']).name}"),
        ("discretize", f"compiled, {module}" if compiled else f"not compiled, {module} (as in editable installs)"),
        ("profiles", f"{shipped['chains']} chains and {shipped['graphs']} graphs, {shipped['folder']}"),
        *((f"[{name}]", _packages(extra)) for name, extra in found["extras"].items()),
    ]
    if found["torch"] is not None:
        rows.append(("CUDA", _accelerator(found["torch"])))
    if test["passed"]:
        text = f"passed: a makespan of {test['makespan']} s, the known optimum, in {format_seconds(test['seconds'])}"
    else:
        text = f"failed: {test['problem']}"
    return [*rows, ("self test", text)]


@click.command()
@quiet_option
@json_option
@click.pass_context
def doctor(context: click.Context, as_json: bool) -> None:
    """Say what is installed and test that it works.

    \b
    memsched doctor
    memsched doctor --json

    Paste the output into a bug report. The exit status is 1 if the core does not work; a missing extra is no error.
    """
    found = examine()
    answer(as_json, lambda: found, facts(_rows(found), f"memsched {memsched.__version__}"))
    if found["problems"]:
        complain("; ".join(found["problems"]))
        context.exit(1)
