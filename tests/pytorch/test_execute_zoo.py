"""Every network, in float32 and in bfloat16: each planner's plan and two random ones, bit for bit and byte for byte.

For before a release: it takes some forty minutes on two cores.
"""

from __future__ import annotations

import pytest
import torch

from memsched.testing import random_schedule
from pytorch.models import CASES, Case
from pytorch.steps import EVERY_PLANNER, copies, differences, plain_step, planned_step, planner_schedules, prepared
from pytorch.test_execute_memory import check_bytes

ZOO = [pytest.param(case, id=case.name) for case in CASES if case.exportable and case.family is not None]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", ZOO)
def test_each_planner_on_each_network(case: Case, dtype: torch.dtype | None) -> None:
    p = prepared(case, dtype)
    want = plain_step(p)
    schedules = dict(planner_schedules(p, EVERY_PLANNER, (0.2,)))
    schedules |= {f"random {seed}": random_schedule(p.chain, seed, chunk="storage") for seed in range(2)}
    for seed, (name, schedule) in enumerate(schedules.items()):
        found = planned_step(p, schedule, early=copies(seed), overlap=seed % 2 == 1)
        assert differences(want, found) == [], name
        check_bytes(p, schedule)
