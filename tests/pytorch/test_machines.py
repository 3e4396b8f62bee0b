"""The table of machines and links, and the texts that name them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsched.errors import InvalidInputError
from memsched.torch.machines import LINKS, MACHINES, machine


@given(st.sampled_from(sorted(MACHINES)), st.sampled_from(sorted(LINKS)), st.booleans(), st.sampled_from(["", " "]))
def test_every_machine_goes_with_every_link(name: str, link: str, upper: bool, space: str) -> None:
    text = f"{space}{name}:{link}{space}"
    assert machine(text.upper() if upper else text) == (MACHINES[name], LINKS[link])


@pytest.mark.parametrize("name", MACHINES)
def test_a_name_alone_means_the_usual_link(name: str) -> None:
    assert machine(name) == (MACHINES[name], LINKS[MACHINES[name].link])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("v101", ["'v101'", "v100, a100", "v100:pcie3"]),
        ("", ["''", "v100, a100"]),
        ("v100:", ["no link", "pcie3, pcie4, pcie5, nvlink"]),
        ("v100:usb", ["'usb'", "pcie3, pcie4, pcie5, nvlink"]),
        ("v100:pcie3:pcie4", ["'pcie3:pcie4'", "pcie3, pcie4"]),
        (7, ["7", "no name of a machine", "v100, a100"]),
        ("cuda", ["'cuda'", '"here" is the device that the model is on', "v100, a100"]),
    ],
)
def test_what_is_unknown_is_refused_with_what_there_is(text: object, words: list[str]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        machine(text)  # type: ignore[arg-type]
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("gpu", MACHINES.values(), ids=str)
def test_figures_fit_together(gpu: object) -> None:
    assert gpu.source  # type: ignore[attr-defined]
    rates = [gpu.float32, gpu.tf32, gpu.float16]  # type: ignore[attr-defined]
    known = [rate for rate in rates if rate is not None]
    assert known == sorted(known)  # narrower types are no slower
    # Tensor cores came with Volta (float16), TF32 and bfloat16 with Ampere.
    assert (gpu.float16 is not None) == (gpu.capability >= (7, 0))  # type: ignore[attr-defined]
    for rate in (gpu.tf32, gpu.bfloat16):  # type: ignore[attr-defined]
        assert (rate is not None) == (gpu.capability >= (8, 0))  # type: ignore[attr-defined]


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        MACHINES["mine"] = MACHINES["v100"]  # type: ignore[index]


def test_the_link_of_the_papers_is_the_default_of_their_machine() -> None:
    assert machine("v100")[1].bandwidth == 12.2e9
    assert not any(link.duplex for link in LINKS.values())
