"""Make the shipped profiles anew, or check that they are what would be made: `python -m bench.profiles --help`.

All networks run on tensors without data, so that no weights or images are allocated. Bytes and times do not depend on
the machine; they do on the versions of torch, torchvision and transformers.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from bench.profiles import graphs, steps
from bench.profiles.chains import chain_document, to_bytes
from bench.profiles.differences import differing
from bench.profiles.networks import Source, register_causal_attention, sources

import memsched as ms
from memsched.support.documents import write_bytes

FOLDER = Path(ms.__file__).parent / "problems"
PARTS = ("chains", "graphs", "steps")


def main(arguments: list[str] | None = None) -> int:
    """0; 1 if `--check` found a difference."""
    known = sources()
    parser = argparse.ArgumentParser(prog="python -m bench.profiles", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these profiles; of graphs, all of their networks")
    parser.add_argument("--chains", type=Path, default=FOLDER / "chains", help="folder of the chains")
    parser.add_argument("--graphs", type=Path, default=FOLDER / "graphs", help="folder of the graphs")
    parser.add_argument("--check", action="store_true", help="write nothing; say what in the folders differs")
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.only or ()) - set(known) - set(steps.names()))
    if unknown:
        parser.error(f"no profile is named {', '.join(unknown)}; there are {', '.join((*known, *steps.names()))}")
    torch.set_num_threads(1)
    chosen = {name: source for name, source in known.items() if given.only is None or name in given.only}
    if given.parts != ["steps"] and any(source.network == "gpt2" for source in chosen.values()):
        register_causal_attention()
    began, wrong, count = time.monotonic(), 0, 0
    for path, document in _documents(given, chosen, known):
        count += 1
        found = _check(path, document) if given.check else _write(path, document)
        wrong += bool(given.check and found)
        print(f"{time.monotonic() - began:7.1f} s  {path.name}: {found or 'the same'}", flush=True)
    done = f"{wrong} of {count} files differ" if given.check else f"{count} files written"
    print(f"{done}; {time.monotonic() - began:.0f} s, {time.process_time():.0f} s of CPU")
    return 1 if wrong else 0


def _documents(
    given: argparse.Namespace, chosen: dict[str, Source], known: dict[str, Source]
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """What belongs into each file, one after the other."""
    if "chains" in given.parts:
        for name, source in chosen.items():
            yield given.chains / f"{name}.json", chain_document(name, source)
    if "graphs" in given.parts:
        for network in dict.fromkeys(source.network for source in chosen.values()):
            family = {name: source for name, source in known.items() if source.network == network}
            made = {name: graphs.record(name, source) for name, source in family.items()}
            note = next(iter(family.values())).note
            yield given.graphs / f"{network}.json.gz", graphs.pack(network, note, made)
    if "steps" in given.parts:
        for name in steps.names() if given.only is None else sorted(set(given.only) & set(steps.names())):
            yield given.graphs / f"{name}.json.gz", steps.document(name)


def _write(path: Path, document: dict[str, Any]) -> str:
    content = graphs.compress(document) if path.suffix == ".gz" else to_bytes(document)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content)
    return f"{len(content)} bytes"


def _check(path: Path, document: dict[str, Any]) -> str:
    """What differs between a file and what belongs into it; empty if nothing does."""
    if not path.exists():
        return "missing"
    content = path.read_bytes()
    shipped = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    return ", ".join(differing(shipped, json.loads(to_bytes(document))))


if __name__ == "__main__":
    sys.exit(main())
