"""The C transcription that the benchmarks measure against is rotor's published recurrence, cell by cell."""

from __future__ import annotations

import numpy as np
import pytest
from bench.rotor_published import rotor_table

from oracles.rotor_published import published, table

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(40))
def test_every_cell(seed: int) -> None:
    generator = np.random.default_rng(seed)
    stages, slots = int(generator.integers(1, 8)), int(generator.integers(1, 30))
    times = generator.integers(0, 9, (2, stages))
    sizes = generator.integers(1, 7, (2, stages + 1))
    scratch = generator.integers(0, 4, (2, stages))
    values, decisions = rotor_table(*times.astype(float), *sizes, *scratch, slots)
    fw, bw, x, xb, ftmp, btmp = (column.tolist() for pair in (times, sizes, scratch) for column in pair)
    expected = table(published(fw=fw, bw=bw, x=x, xb=xb, ftmp=ftmp, btmp=btmp), stages, slots)
    for (m, i, last), value in expected.items():
        assert values[m, i, last] == value
        split = decisions[m, i, last]
        if last > i and np.isfinite(value):
            again = (
                values[m, i, i] + values[m - xb[i + 1], i + 1, last]
                if split < 0
                else sum(fw[i:split]) + values[m - x[split], split, last] + values[m, i, split - 1]
            )
            assert again == value
