"""Print the README's test command: the code block after the line <!-- ci:test -->."""

import re
import sys
from pathlib import Path

MARKER = "<!-- ci:test -->"

path = Path(sys.argv[1])
text = path.read_text(encoding="utf-8")
if text.count(MARKER) != 1:
    raise SystemExit(f"{path} has {text.count(MARKER)} lines {MARKER}; put one before the block with the test command")
after = text.split(MARKER)[1].lstrip("\n")
fenced = re.match(r"```\w*\n(.*?)\n```", after, re.S)
indented = re.match(r"(?:(?: {4}|\t).*\n?)+", after)
block = fenced[1] if fenced else indented[0] if indented else ""
lines = [re.sub(r"^\s*\$ ", "", line).strip() for line in block.splitlines()]
command = "\n".join(line for line in lines if line)
if "pytest" not in command:
    raise SystemExit(f"the block after {MARKER} in {path} does not run pytest: {command!r}")
print(command)
