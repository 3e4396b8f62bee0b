"""Check that a tag is the package's version and that CHANGELOG.md has a dated section of it: version.py v0.1.0"""

import re
import sys
from pathlib import Path

tag = sys.argv[1]
source = Path("python/memsched/__init__.py").read_text(encoding="utf-8")
version = re.findall(r'^__version__ = "(.*)"$', source, re.M)[0]
if tag != f"v{version}":
    raise SystemExit(f"the tag is {tag} and __version__ is {version}; tag v{version}, or change __version__ first")
if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", Path("CHANGELOG.md").read_text("utf-8"), re.M):
    raise SystemExit(f"CHANGELOG.md has no line '## [{version}] - YYYY-MM-DD'; rename its section Unreleased")
print(f"{tag} it is")
