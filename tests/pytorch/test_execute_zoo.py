"""Every network, in float32 and in bfloat16: each planner's plan and a random one, bit for bit and byte for byte.

For before a release: it takes some twenty minutes on two cores.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from memsched.testing import schedules_of
from pytorch.models import CASES, Case
from pytorch.steps import PLANNERS, Prepared, copies, differences, plain_step, planned_step, planner_schedules, prepared
from pytorch.test_execute_memory import check_bytes

ZOO = [pytest.param(case, id=case.name) for case in CASES if case.exportable and case.family is not None]


def check_one_random(p: Prepared) -> None:
    want = plain_step(p)

    @settings(max_examples=1, deadline=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        schedule = data.draw(schedules_of(p.chain, chunk="storage"), label="schedule")
        early = data.draw(st.integers(0, 9), label="copies")
        assert differences(want, planned_step(p, schedule, early=copies(early))) == []

    check()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", ZOO)
def test_each_planner_on_each_network(case: Case, dtype: torch.dtype | None) -> None:
    p = prepared(case, dtype)
    want = plain_step(p)
    for seed, (name, schedule) in enumerate(planner_schedules(p, PLANNERS, (0.2,))):
        found = planned_step(p, schedule, early=copies(seed), overlap=seed % 2 == 1)
        assert differences(want, found) == [], name
        if name.startswith(("rotor", "greedy")):
            check_bytes(p, schedule)
    if p.chain.n < 30:  # random schedules of long lists take minutes
        check_one_random(p)
