"""Fuzz all that reads documents: damaged ones are refused by an error of ours, or read and good for all that follows.

    python tools/fuzz.py --seconds 20
    python tools/fuzz.py --documents 1000000 --seed 7
    python tools/fuzz.py --again build/fuzz/chain-0123456789

With atheris, coverage of memsched's Python code leads the way; without it the same damage is done at random. Each
reader works in a process of its own under a limit of time and memory, so that a crash or a hang is found rather than
suffered.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import shutil
import signal
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STUCK_SECONDS = 10.0  # on one document, by the clock on the wall: then the process is ended
MOST_CHILDREN = 20  # processes that may die on one reader


def _atheris() -> Any:
    try:
        import atheris
    except ImportError:
        return None
    return atheris


def _instrument(guided: Any) -> None:
    """Count what memsched's functions do; after their import, for editable installs bring a loader of their own."""
    for one in gc.get_objects():
        if isinstance(one, types.FunctionType) and str(one.__module__).partition(".")[0] == "memsched":
            guided.instrument_func(one)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, help="for all readers together")
    parser.add_argument("--documents", type=int, help="for all readers together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", action="append", help="only this one; may be given several times")
    parser.add_argument("--plain", action="store_true", help="without atheris")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "fuzz", help="where documents at fault go")
    parser.add_argument("--json", type=Path, help="write the counts here, too")
    parser.add_argument("--again", type=Path, help="read one document that was at fault; its name says which reader")
    options = parser.parse_args()
    if options.seconds is None and options.documents is None:
        options.seconds = 20.0
    return options


def _coverage(log: Path) -> str:
    """How many features the mutations reached beyond those of the valid documents."""
    text = log.read_text(errors="replace") if log.exists() else ""
    first = re.search(r"INITED\s+cov: (\d+) ft: (\d+)", text)
    last = re.findall(r"cov: (\d+) ft: (\d+)", text)
    return f"{int(last[-1][1]) - int(first[2])}" if first and last else "-"


class Watch:
    """The readers, one after the other, each in a child that is replaced when it dies."""

    def __init__(self, options: argparse.Namespace, guided: Any) -> None:
        self.options, self.guided = options, guided
        self.folder: Path = options.output

    def reader(self, reader: str, most: int, seconds: float) -> dict[str, Any]:
        """Fuzz one; its counts."""
        from fuzzing.child import Record

        record, begin = Record(), time.monotonic()
        new = 0
        for attempt in range(MOST_CHILDREN):
            log = self.folder / f"{reader}.{attempt}.log"
            child = os.fork()
            if child == 0:
                self._in_child(reader, record, log, attempt, most, begin + seconds)
            status = self._watch(child, record, reader, log)
            found = _coverage(log)
            new = max(new, int(found)) if found != "-" else new
            if status == 0 or time.monotonic() - begin >= seconds or record.documents >= most:
                break
        record.look()
        return {
            "reader": reader,
            "documents": record.documents,
            "refused": record.refused,
            "accepted": record.accepted,
            "new_coverage": new if self.guided is not None else None,
            "seconds": round(time.monotonic() - begin, 1),
        }

    def _in_child(self, reader: str, record: Any, log: Path, attempt: int, most: int, deadline: float) -> None:
        from fuzzing import child

        try:
            with log.open("wb") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            seed = self.options.seed * 1000 + attempt
            child.run(reader, record, self.folder, seed, most, deadline, self.guided)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(3)

    def _watch(self, child: int, record: Any, reader: str, log: Path) -> int:
        """Wait for the child's end; keep the document that it died of."""
        from fuzzing.child import save

        seen, since = -1, time.monotonic()
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            data = record.look()
            if ended:
                if status != 0:
                    code = os.waitstatus_to_exitcode(status)
                    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
                    during = "" if data is not None else ", between two documents"
                    message = f"the process ends with {how}{during}; its output is in {log}"
                    save(self.folder, reader, f"ends {how}", message, data or b"")
                    record.end(None)
                return status
            if record.documents != seen or data is None:
                seen, since = record.documents, time.monotonic()
            if time.monotonic() - since > STUCK_SECONDS:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                save(self.folder, reader, "hangs", f"it takes more than {STUCK_SECONDS:.0f} s", data or b"")
                record.end(None)
                return 1
            time.sleep(0.02)


def _again(path: Path) -> int:
    from fuzzing import readers

    reader = path.name.partition("-")[0]
    print(f"{reader}: {'accepted' if readers.accepts(reader, path.read_bytes()) else 'refused'}")
    return 0


def main() -> int:
    """Fuzz, and say what was found."""
    options = _parse()
    guided = None if options.plain else _atheris()
    if guided is None:
        why = "as asked for" if options.plain else "for it is not installed"
        print(f"without atheris, {why}: the same damage, but nothing leads to new code")
    from fuzzing import corpus, readers

    if options.again:
        return _again(options.again)
    corpus.documents()
    if guided is not None:
        _instrument(guided)
    shutil.rmtree(options.output, ignore_errors=True)
    options.output.mkdir(parents=True)
    names = options.reader or list(readers.READERS)
    begin, left = time.monotonic(), options.documents
    counts = []
    watch = Watch(options, guided)
    print(
        f"{'reader':12}{'documents':>12}{'refused':>12}{'accepted':>12}{'new coverage':>14}{'seconds':>9}", flush=True
    )
    for k, name in enumerate(names):
        share = 10**12 if left is None else -(-left // (len(names) - k))
        rest = 10**9 if options.seconds is None else (options.seconds - time.monotonic() + begin) / (len(names) - k)
        one = watch.reader(name, share, rest)
        left = None if left is None else left - one["documents"]
        counts.append(one)
        reached = "-" if one["new_coverage"] is None else one["new_coverage"]
        figures = f"{one['documents']:12}{one['refused']:12}{one['accepted']:12}{reached:>14}{one['seconds']:9}"
        print(f"{name:12}{figures}", flush=True)
    total = {key: sum(one[key] for one in counts) for key in ("documents", "refused", "accepted")}
    print(f"{'all':12}{total['documents']:12}{total['refused']:12}{total['accepted']:12}")
    if options.json:
        document = {"seed": options.seed, "guided": guided is not None, "readers": counts, "all": total}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    defects = [json.loads(path.read_text()) for path in sorted(options.output.glob("*.txt"))]
    for defect in defects:
        print(f"{defect['path']}: {defect['reader']}: {defect['message']}", file=sys.stderr)
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
