"""Bayesian optimisation over the simplex: Gaussian process, expected improvement, random candidates."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memsched.support.memory import demand_memory
from memsched.support.types import Progress

Array = npt.NDArray[np.float64]

LENGTH = 0.3
NOISE = 1e-6
CANDIDATES = 256
_LEAST_MEMORY = 64 * 2**20  # bytes: OpenBLAS ends the process where it gets no buffers of its own, 32 MiB a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The points tried, shape [evaluations, dimension], and their values, infinite where infeasible."""

    points: Array
    values: Array

    @property
    def best(self) -> int:
        """Index of the least value; the first on ties."""
        return int(np.argmin(self.values))


def kernel(left: Array, right: Array) -> Array:
    """Squared-exponential covariance of all pairs of points, shape [len(left), len(right)]."""
    distance = ((left[:, None, :] - right[None, :, :]) ** 2).sum(axis=-1)
    covariance: Array = np.exp(-0.5 * distance / LENGTH**2)
    return covariance


def posterior(points: Array, values: Array, at: Array) -> tuple[Array, Array]:
    """Posterior mean and standard deviation at the points `at`; the prior has mean 0 and variance 1."""
    factor = np.linalg.cholesky(kernel(points, points) + NOISE * np.eye(len(points)))
    solved = np.linalg.solve(factor, np.column_stack([values, kernel(points, at)]))
    mean = solved[:, 1:].T @ solved[:, 0]
    variance = 1.0 - (solved[:, 1:] ** 2).sum(axis=0)
    return mean, np.sqrt(np.maximum(variance, 0.0))


def expected_improvement(mean: Array, deviation: Array, best: float) -> Array:
    """Expected improvement of a normal variable below `best`: E[max(best - X, 0)]."""
    gain = best - mean
    z = gain / np.maximum(deviation, 1e-12)
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * (1.0 + math.erf(value / math.sqrt(2))) for value in z])
    improvement: Array = gain * below + deviation * density
    return improvement


def standardised(values: Array) -> Array:
    """Scale to mean 0 and variance 1; an infeasible value counts as twice the worst feasible one."""
    feasible = values[np.isfinite(values)]
    unit = -math.frexp(feasible.max(initial=0.0))[1]  # so that squares of times cannot overflow
    filled = np.ldexp(np.where(np.isfinite(values), values, 0.0), unit)
    filled[~np.isfinite(values)] = 2.0 * filled.max(initial=0.0)
    spread = filled.std()
    centred: Array = filled - filled.mean()
    return centred / spread if spread > 0 else centred


def minimise(
    objective: Callable[[Array], float],
    starts: Array,
    *,
    evaluations: int,
    seed: int,
    target: float = -math.inf,
    until: float = math.inf,
    progress: Progress = None,
) -> Search:
    """Minimise a function over the simplex.

    The starts are evaluated first. Each further point is the one of 256 uniform (Dirichlet) samples with the
    largest expected improvement under a Gaussian process with an RBF kernel (length 0.3, noise 1e-6), fitted to
    the standardised values so far.

    `objective` takes a point and returns a value >= 0, infinite where infeasible. `starts` has one point per row;
    `evaluations` counts them, too. The search stops at the first value <= `target`; after the time.perf_counter()
    `until`, no point but the first is evaluated. `progress` is called with a fraction from 0 to 1 before each
    evaluation.

    Examples
    --------
    >>> search = minimise(lambda w: abs(w[0] - 0.3), np.eye(2), evaluations=12, seed=0)
    >>> bool(search.values.min() < 0.05)
    True
    """
    demand_memory("linear algebra does not fit into the memory that this process may have", _LEAST_MEMORY)
    generator = np.random.default_rng(seed)
    points: list[Array] = []
    values: list[float] = []
    while len(values) < evaluations and not (values and (min(values) <= target or time.perf_counter() > until)):
        if progress is not None:
            progress(len(values) / evaluations)
        if len(values) < len(starts):
            point = starts[len(values)]
        else:
            samples = generator.dirichlet(np.ones(starts.shape[1]), CANDIDATES)
            seen = standardised(np.array(values))
            mean, deviation = posterior(np.array(points), seen, samples)
            point = samples[int(np.argmax(expected_improvement(mean, deviation, seen.min())))]
        points.append(point)
        values.append(objective(point))
    return Search(points=np.array(points), values=np.array(values))
