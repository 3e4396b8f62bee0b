"""GPUs and links that plans are predicted for when they are not at hand: what their vendors say of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from memsched.errors import InvalidInputError

LAUNCH_SECONDS = 4e-6
"""What the start of one kernel costs in the roofline model, on every machine. An assumption, not from a data sheet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The way between the memory of a GPU and the memory of its host.

    Attributes
    ----------
    name : str
    bandwidth : float
        Bytes per second in one direction that large copies from and to pinned memory get, below the peak of the wires.
    duplex : bool
        Whether both directions run at full speed at once. False for all: what is measured here is one direction alone.
    source : str
        Where the bandwidth comes from.
    """

    name: str
    bandwidth: float
    duplex: bool
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A GPU as its vendor's data sheet describes it: peaks, dense (no sparsity), that no program reaches.

    Attributes
    ----------
    name : str
    memory : int
        Bytes: the data sheet's GB as powers of 1000. Drivers report a little more, and keep a little for themselves.
    memory_bandwidth : float
        Bytes per second, the peak.
    float32 : float
        Operations per second outside the tensor cores.
    tf32, float16, bfloat16 : float or None
        Operations per second of the tensor cores, sums in float32; None where the chip has none for that type.
    capability : tuple of int
        CUDA's compute capability: which attention kernels torch chooses depends on it.
    link : str
        Name of the link to the host that comes with it.
    source : str
        The documents that the figures are from.
    launch : float
        Seconds that the start of a kernel costs.
    """

    name: str
    memory: int
    memory_bandwidth: float
    float32: float
    tf32: float | None
    float16: float | None
    bfloat16: float | None
    capability: tuple[int, int]
    link: str
    source: str
    launch: float = LAUNCH_SECONDS


_LINKS = (
    Link(
        name="pcie3",
        bandwidth=12.2e9,
        duplex=False,
        source="measured in the Euro-Par 2020 paper, on PCIe 3.0 x16 (peak 15.75e9)",
    ),
    Link(
        name="pcie4",
        bandwidth=24.4e9,
        duplex=False,
        source="twice the measured pcie3, as the peak is (31.5e9, PCIe 4.0 x16); not measured",
    ),
    Link(
        name="pcie5",
        bandwidth=48.8e9,
        duplex=False,
        source="four times the measured pcie3, as the peak is (63.0e9, PCIe 5.0 x16); not measured",
    ),
    Link(
        name="nvlink",
        bandwidth=68e9,
        duplex=False,
        source="measured by The Next Platform (15 December 2017) from host to GPU on IBM's AC922: three links of "
        "NVLink 2 between a V100 and its POWER9 (peak 75e9)",
    ),
)

_MACHINES = (
    Machine(
        name="v100",
        memory=16 * 10**9,
        memory_bandwidth=900e9,
        float32=14e12,
        tf32=None,
        float16=112e12,
        bfloat16=None,
        capability=(7, 0),
        link="pcie3",
        source="NVIDIA Tesla V100 data sheet, V100 PCIe 16 GB",
    ),
    Machine(
        name="a100",
        memory=80 * 10**9,
        memory_bandwidth=2039e9,
        float32=19.5e12,
        tf32=156e12,
        float16=312e12,
        bfloat16=312e12,
        capability=(8, 0),
        link="pcie4",
        source="NVIDIA A100 data sheet, A100 80GB SXM, figures without sparsity",
    ),
    Machine(
        name="h100",
        memory=80 * 10**9,
        memory_bandwidth=3.35e12,
        float32=67e12,
        tf32=494.5e12,
        float16=989.5e12,
        bfloat16=989.5e12,
        capability=(9, 0),
        link="pcie5",
        source="NVIDIA H100 data sheet, H100 SXM; the tensor cores' figures, stated with sparsity, are halved here",
    ),
    Machine(
        name="h200",
        memory=141 * 10**9,
        memory_bandwidth=4.8e12,
        float32=67e12,
        tf32=494.5e12,
        float16=989.5e12,
        bfloat16=989.5e12,
        capability=(9, 0),
        link="pcie5",
        source="NVIDIA H200 data sheet, H200 SXM; the tensor cores' figures, stated with sparsity, are halved here",
    ),
    Machine(
        name="rtx3090",
        memory=24 * 10**9,
        memory_bandwidth=936e9,
        float32=35.6e12,
        tf32=35.6e12,
        float16=71e12,
        bfloat16=71e12,
        capability=(8, 6),
        link="pcie4",
        source="NVIDIA Ampere GA102 GPU architecture white paper, GeForce RTX 3090, sums in FP32, no sparsity",
    ),
    Machine(
        name="rtx4090",
        memory=24 * 10**9,
        memory_bandwidth=1008e9,
        float32=82.6e12,
        tf32=82.6e12,
        float16=165.2e12,
        bfloat16=165.2e12,
        capability=(8, 9),
        link="pcie4",
        source="NVIDIA Ada GPU architecture white paper, GeForce RTX 4090, sums in FP32, no sparsity",
    ),
    Machine(
        name="l4",
        memory=24 * 10**9,
        memory_bandwidth=300e9,
        float32=30.3e12,
        tf32=60e12,
        float16=121e12,
        bfloat16=121e12,
        capability=(8, 9),
        link="pcie4",
        source="NVIDIA L4 data sheet; the tensor cores' figures, stated with sparsity, are halved here",
    ),
    Machine(
        name="t4",
        memory=16 * 10**9,
        memory_bandwidth=320e9,
        float32=8.1e12,
        tf32=None,
        float16=65e12,
        bfloat16=None,
        capability=(7, 5),
        link="pcie3",
        source="NVIDIA T4 data sheet (memory bandwidth: NVIDIA T4 product brief)",
    ),
    Machine(
        name="k40m",
        memory=12 * 10**9,
        memory_bandwidth=288e9,
        float32=4.29e12,
        tf32=None,
        float16=None,
        bfloat16=None,
        capability=(3, 5),
        link="pcie3",
        source="NVIDIA Tesla K40 board specification BD-06902-001 and Tesla K-series overview, at the base clock",
    ),
)

MACHINES: Mapping[str, Machine] = MappingProxyType({entry.name: entry for entry in _MACHINES})
"""By name: V100 PCIe 16 GB, A100 SXM 80 GB, H100 SXM, H200 SXM, RTX 3090, RTX 4090, L4, T4 and K40m, all NVIDIA's."""

LINKS: Mapping[str, Link] = MappingProxyType({entry.name: entry for entry in _LINKS})
"""The links by name. "nvlink" is NVLink 2 to the host, which only POWER9 machines have, not the links between GPUs."""


def machine(text: str) -> tuple[Machine, Link]:
    """A machine and its link to the host, from a text such as "v100" or "h100:pcie4".

    Parameters
    ----------
    text : str
        The name of a machine, then, if another link than its usual one is meant, a colon and the name of a link.
        Upper and lower case are the same.

    Returns
    -------
    Machine, Link

    Raises
    ------
    InvalidInputError
        No machine or no link has this name; the message says which there are.

    Examples
    --------
    >>> from memsched.torch.machines import machine
    >>> gpu, link = machine("V100:pcie3")
    >>> gpu.memory, link.bandwidth
    (16000000000, 12200000000.0)
    >>> machine("a100")[1].name
    'pcie4'
    """
    forms = 'write a name such as "v100", or name and link such as "v100:pcie3"'
    if not isinstance(text, str):
        raise InvalidInputError(f"the machine is {text!r}, which is not a text; {forms}")
    name, colon, link = text.strip().lower().partition(":")
    if name not in MACHINES:
        raise InvalidInputError(f"no machine is named {name!r} (in {text!r}); there are {', '.join(MACHINES)}; {forms}")
    chosen = link if colon else MACHINES[name].link
    if chosen not in LINKS:
        raise InvalidInputError(f"no link is named {link!r} (in {text!r}); there are {', '.join(LINKS)}; {forms}")
    return MACHINES[name], LINKS[chosen]
