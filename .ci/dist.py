"""Check what is in the wheel and the sdist of a folder."""

import sys
import tarfile
import zipfile
from pathlib import Path

folder = Path(sys.argv[1])
(wheel,) = folder.glob("*.whl")
(sdist,) = folder.glob("*.tar.gz")
source = Path("python/memsched")

packed = set(zipfile.ZipFile(wheel).namelist())
wanted = {f"memsched/{path.relative_to(source).as_posix()}" for path in source.rglob("*.py*") if path.suffix != ".pyc"}
data = [path for pattern in ("*.json", "*.json.gz") for path in source.rglob(pattern)]
assert len({path.parent for path in data}) == 3, "chains, graphs and schemas"
native = [path for path in (source / "torch/arena").iterdir() if path.suffix in (".cpp", ".h")]  # compiled when used
assert len(native) == 4, "the arena's allocators"
data += native
data += [path for path in (source / "show/report").rglob("*") if path.is_file() and path.suffix != ".pyc"]
wanted |= {f"memsched/{path.relative_to(source).as_posix()}" for path in data}
wanted |= {"memsched/py.typed", "memsched/_core.pyi"}
missing = sorted(wanted - packed)
if missing:
    raise SystemExit(f"{wheel.name} lacks {missing}")
for module in ("_core", "problems/discretize"):
    if not any(name.startswith(f"memsched/{module}.") and name.endswith((".so", ".pyd")) for name in packed):
        raise SystemExit(f"{wheel.name} lacks the compiled module {module}")
strange = sorted(n for n in packed if not n.startswith("memsched/") and ".dist-info/" not in n)
strange += sorted(n for n in packed - wanted if n.endswith((".cpp", ".h", ".a", ".pyc")))
if strange:
    raise SystemExit(f"{wheel.name} has files that do not belong there: {strange}")

with tarfile.open(sdist) as archive:
    listed = {name.partition("/")[2] for name in archive.getnames()}
for name in ("pyproject.toml", "CMakeLists.txt", "LICENSE", "README.md", "cpp/memsched/simulate/simulate.h", "tests"):
    if not any(entry == name or entry.startswith(name + "/") for entry in listed):
        raise SystemExit(f"{sdist.name} lacks {name}")
folders = {"bench", "cpp", "docs", "examples", "python", "tests", "tools"}
known = folders | {path.name for path in Path().glob("*.md")} | {"CMakeLists.txt", "CMakePresets.json", "PKG-INFO"}
known |= {"CITATION.cff", "LICENSE", "pyproject.toml"}
strange = sorted({name.partition("/")[0] for name in listed} - known)
strange = [name for name in strange if name and not name.startswith(".")]
if strange:
    raise SystemExit(f"{sdist.name} has {strange}; add what belongs there to .ci/dist.py, and exclude the rest")
print(f"{wheel.name}: {len(packed)} files; {sdist.name}: {len(listed)} entries")
