"""The picture that train_plan.py draws."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from memsched.support.formats import format_bytes


def draw(path: str, plain: dict[str, Any], planned: dict[str, Any], budget: int, timeline: Any) -> None:
    """The losses of both runs, and the memory within one planned step."""
    figure = Figure(figsize=(10.5, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(plain["losses"], color="#e69f00", linewidth=4, label="without a plan")
    left.plot(planned["losses"], color="#0072b2", linewidth=1.2, label="with the plan")
    left.set(xlabel="step", ylabel="loss", title="the same losses, bit for bit", ylim=(0, None))
    left.legend(frameon=False)
    mib = 1 << 20
    times, held = timeline.memory
    right.fill_between([1e3 * t for t in times], [b / mib for b in held], step="post", color="#0072b2", alpha=0.35)
    right.axhline(budget / mib, color="#0072b2", linestyle="--", label=f"budget {format_bytes(budget)}")
    peak = plain["peak"]
    right.axhline(peak / mib, color="#e69f00", linewidth=2, label=f"peak without a plan {format_bytes(peak)}")
    right.set(xlabel="time (ms)", ylabel="memory (MiB)", title="one planned step, as simulated")
    right.set_ylim(0, 1.25 * peak / mib)
    right.legend(frameon=False, loc="upper center", ncols=2)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
