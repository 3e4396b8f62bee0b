"""Valid documents to start from, by the name of the reader: small profiles and problems, a plan of each planner."""

from __future__ import annotations

import json
import pickle
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import memsched as ms
from memsched.planners.registry import PLANNERS

ROOT = Path(__file__).resolve().parents[2]
SMALL_PROFILES = 4  # of those that ship, the ones with the shortest documents

TEXTS = [
    *("8GiB", "1.5 kB", "1e9", "500MB", "1_000", " 16MiB ", "2PiB", ".5TB", "0", "-1B"),
    *("0%", "40%", "100 %", "12GB/s", "12.2e9", "inf", "Infinity", "10us", "0.5", "3 ms", "7µs", "storage", "none"),
    *("resnet18-224-b32", "graph:resnet18-224-b32", "analytic:resnet50:8", "analytic:vgg16:2:k40m"),
    *("4096", "1e3", "2.5", "-0.0", "true", "9007199254740993"),
]

CSV = [
    "id,lower,upper,size\na,0,2,3\nb,1,3,4\n",
    "id,lower,upper,size,alignment,offset\na,0,2,3,1,-1\nb,1,3,4,4,8\nc,2,9,16,8,\n",
    "buffer,start,end,size,hint,gaps\n0,0,1,8,,\n1,1,2,8,0,\n2,2,2,1,5,\n",
    '\ufeffid,lower,upper,size\r\n"a,b",0.5,2.25,3\r\n\r\nc,1,3,4\r\n',
]

CHAIN_CSV = [
    "forward_time,backward_time,activation\n,,4\n1,2,6\n2,3,5\n",
    "name;forward_time;backward_time;activation;gradient;saved\nx;;;4 KiB;0;\n'=a;1 ms;2 ms;6;;9\nb;2;3;5;5;\n",
    '\ufeffname\tforward_time\tbackward_time\tactivation\r\n\t\t\t4\r\n"c\t"\t1\t1\t4\r\n\r\n',
]

SPECS = [
    'problems = ["resnet18-224-b32"]\nmemory = ["20%", "8GiB", 10000]\n',
    'problems = "graph:resnet18-224-b32"\nplanners = ["greedy"]\nmemory = {from = "0%", to = "100%", points = 5}\n'
    'bandwidth = ["12GB/s", 1e9, "inf", "profile"]\nshared_tables = false\nslots_of_tables = 100\n'
    '[device]\nduplex = true\nlatency = "10us"\nhost_memory = "64GiB"\n[options.dynprog]\nslots = 200\n',
    "problems = ['a.json', 'analytic:resnet50:8']\nmemory = {from = 1_000, to = '2kB', points = 0x10}\n"
    "options.all.chunk = 16\ndevice = {latency = 1e-5}\n",
]


def chain() -> ms.Chain:
    """Three stages with all that a chain can have."""
    return ms.Chain(
        *([1, 2, 1.5], [2, 3, 1], [4, 6, 5, 3], [0, 6, 5, 3]),
        saved=[9, 5, 7],
        pieces=[[1, 2], [], [4]],
        forward_overhead=[1, 0, 2],
        names=["a", "b", "ç"],
        provenance={"link_bandwidth": "2 B/s", "notes": [1, None, {"deep": True}]},
        name="fuzz chain",
        resident=2,
    )


def graph(batch: int = 1) -> ms.Graph:
    """Four ops with a tape, two algorithms, one that runs once, and a weight."""
    sizes = {"x": ("input", 2), "w": ("weight", 3), "a": ("activation", 4), "t": ("activation", 1)}
    sizes |= {"b": ("activation", 2), "g": ("gradient", 2), "h": ("gradient", 4)}
    tensors = [{"name": name, "size": size * batch, "role": role} for name, (role, size) in sizes.items()]

    def op(name: str, reads: list[str], writes: list[str], **more: Any) -> dict[str, Any]:
        choices = [{"alg": "default", "time": 0.5 * batch, "workspace": 1}]
        phase = "bwd" if name.startswith("B") else "fwd"
        head = {"name": name, "phase": phase, "kind": "op", "layer": 1}
        return {**head, "reads": reads, "writes": writes, "choices": choices, **more}

    algorithms = [{"alg": name, "time": time, "workspace": k} for k, (name, time) in enumerate([("slow", 2), ("ä", 1)])]
    ops = [
        op("F1", ["x", "w"], ["a", "t"], tape=["t"], skip_workspace=0),
        op("F2", ["a"], ["b"], choices=algorithms),
        op("B2", ["a", "b"], ["g"]),
        op("B1", ["x", "w", "t", "g"], ["h"], once=True),
    ]
    return ms.Graph(tensors, ops, name="fuzz graph", batch=batch, resident=1)


def family() -> ms.GraphFamily:
    """The same at batches 4, 2 and 1."""
    return ms.GraphFamily.from_json(ms.GraphFamily(graph, 4).to_json([2]))


def placements() -> list[ms.Placement]:
    """One with ticks, one with fractions, fixed offsets and alignments."""
    fixed = [ms.Buffer(0, 2.5, 4, 2, 0, name="a"), ms.Buffer(1, 3, 3, 4), ms.Buffer(2, 2, 9), ms.Buffer(0, 9, 0)]
    return [ms.place([ms.Buffer(0, 2, 3, name="a"), ms.Buffer(1, 3, 4)]), ms.place(fixed, method="greedy")]


@cache
def results() -> tuple[ms.Result, ...]:
    """A plan of every planner on a chain, on a graph and on a family, where it takes them and finds one."""
    found = []
    for planner in PLANNERS.values():
        options = {"time_limit": 0.01} if planner.plan.__name__ == "offload" else {}
        for problem in (chain(), graph(4), family()):
            peak = ms.peak_memory(problem)
            for memory in (peak - 3, peak + 4):
                with suppress(ms.MemschedError):
                    found.append(planner.plan(problem, memory, 2.0, **options))
    with suppress(ms.MemschedError):
        found.append(ms.greedy(chain(), ms.peak_memory(chain()) - 3, 2.0, chunk="storage"))
        found.append(ms.greedy(chain(), ms.peak_memory(chain()) - 3, 2.0, chunk=2))
    return tuple(found)


def problems() -> dict[str, Any]:
    """What the plans of the corpus are made for, by the name of the graph."""
    return {"fuzz chain": chain(), "fuzz graph": graph(4), "fuzz family": family()}


def snapshots() -> list[bytes]:
    """What torch.cuda.memory writes, small, with blocks, and a long name that many lists of frames share."""

    def event(action: str, address: int, size: int, frames: list[Any]) -> dict[str, Any]:
        return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 7, "frames": frames}

    frame = {"filename": "/home/me/model.py", "line": 31, "name": "forward"}
    long = {"filename": "/" + "d" * 50_000 + ".py", "line": 2, "name": "f" * 10_000}
    held = [{"address": 512, "size": 512, "requested_size": 40, "state": "active_allocated", "frames": [frame]}]
    free = [event("free_requested", 0, 100, []), event("free_completed", 0, 100, [])]
    traces = [
        [event("alloc", 0, 100, [frame, long]), event("alloc", 2048, 7, [frame]), *free],
        [*free, event("alloc", 0, 100, []), event("free", 2048, 8, [])],
        [event("alloc", 512 * k, 100, [long, frame, long]) for k in range(1, 500)],
    ]
    segments = [{"address": 0, "total_size": 2048, "device": 0, "blocks": held}]
    return [
        pickle.dumps({"segments": segments * (k < 2), "device_traces": [[], trace]}) for k, trace in enumerate(traces)
    ]


def onnx() -> Any:
    """The package, or None."""
    with suppress(ImportError):
        import onnx
        import onnx.parser  # a module of its own

        return onnx
    return None


MODELS = [
    """<ir_version: 8, opset_import: ["" : 17]> mlp (float[N, 2] x) => (float[N, 1] y)
    <float[2, 1] a = {1, 2}, float[1, 1] b = {3}> { h = MatMul(x, a)  r = Relu(h)  y = MatMul(r, b) }""",
    """<ir_version: 8, opset_import: ["" : 17]> shapes (float[N, 2, 4, 4] x) => (float[N, 2] y)
    <float[3, 2, 1, 1] w = {1, 2, 3, 4, 5, 6}, float[3, 2] v = {1, 2, 3, 4, 5, 6},
    int64[1] zero = {0}, int64[1] rest = {-1}> {
    c, m = Dropout(x)  h = Conv(c, w)  p = GlobalAveragePool(h)  s = Shape(p)  n = Gather(s, zero)
    t = Concat<axis = 0>(n, rest)  f = Reshape(p, t)  y = MatMul(f, v) }""",
    """<ir_version: 8, opset_import: ["" : 17, "f" : 1]> calls (float[N, 2] x) => (float[N, 2] y)
    <float[2, 2] a = {1, 2, 3, 4}> { h = MatMul(x, a)  y = f.G3(h) }
    <domain: "f", opset_import: ["" : 17]> G0 (p) => (q) { q = Relu(p) }
    <domain: "f", opset_import: ["" : 17, "f" : 1]> G1 (p) => (q) { m = f.G0(p)  q = f.G0(m) }
    <domain: "f", opset_import: ["" : 17, "f" : 1]> G2 (p) => (q) { m = f.G1(p)  q = f.G1(m) }
    <domain: "f", opset_import: ["" : 17, "f" : 1]> G3 (p) => (q) { m = f.G2(p)  q = f.G2(m) }""",
]


def _of_vectors() -> list[dict[str, Any]]:
    """The chains of tests/vectors, as documents."""
    vectors = json.loads((ROOT / "tests" / "vectors" / "interruptible.json").read_text())[:5]
    return [
        {
            "format": "memsched-chain/1",
            **{"forward_time": one["uF"], "backward_time": one["uB"]},
            **{"activation": one["x"], "gradient": one["y"]},
            **{"forward_overhead": one["exF"], "backward_overhead": one["exB"]},
        }
        for one in vectors
    ]


@cache
def documents() -> dict[str, list[bytes]]:
    """The documents of each reader."""
    plans = results()
    shipped = sorted((ms.profiles.document(name) for name in ms.profiles.names()), key=lambda one: len(str(one)))
    machines = [ms.Device(20, 2.0, latency=0.5, host_memory=7, name="d"), ms.Device(16 * 10**9, d2h=1e9, h2d=2e9)]
    machines += [ms.Device(100, float("inf"), duplex=True), ms.Device(5)]
    found: dict[str, list[Any]] = {
        "chain": [chain().to_json(), *_of_vectors(), *shipped[:SMALL_PROFILES]],
        "graph": [graph().to_json(), graph(4).to_json(), ms.to_graph(chain(), chunk="storage").to_json()],
        "family": [family().to_json([2]), family().to_json()],
        "device": [machine.to_json() for machine in machines] + [{"format": "memsched-device/1", "memory": 5}],
        "plan": [result.schedule.to_json() for result in plans],
        "result": [result.to_json() for result in plans],
        "placement": [placement.to_json() for placement in placements()],
    }
    texts = {kind: [json.dumps(one).encode() for one in several] for kind, several in found.items()}
    written = {"csv": CSV, "chain_csv": CHAIN_CSV, "units": TEXTS, "spec": SPECS}
    package = onnx()
    models = [package.parser.parse_model(text).SerializeToString() for text in MODELS] if package else []
    return {
        **texts,
        **{kind: [text.encode() for text in several] for kind, several in written.items()},
        "store": [_store()],
        "snapshot": snapshots(),
        **({"onnx": models} if models else {}),
    }


def _store() -> bytes:
    """The file of a small sweep."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.sqlite"
        ms.sweep([chain(), graph()], ["swap_all"], memory=["0%", "50%"], beta=[2.0], store=path, jobs=1)
        return path.read_bytes()


def scratch() -> Path:
    """A folder in memory, where there is one."""
    shared = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="memsched-fuzz-", dir=shared if shared.is_dir() else None))
