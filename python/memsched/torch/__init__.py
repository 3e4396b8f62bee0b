"""PyTorch: capture a model, profile it, plan its training step and run the plan.

Needs PyTorch: `pip install 'memsched[torch]'`. `import memsched` alone does not import it; `memsched.torch` does when
it is first used.
"""

import importlib
from typing import TYPE_CHECKING

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError("memsched.torch needs PyTorch: pip install 'memsched[torch]'", name="torch") from _error

from memsched.study.fit import Fit, Steady, Way
from memsched.torch.errors import CaptureError
from memsched.torch.profile import profile

if TYPE_CHECKING:
    from memsched.torch.arena.served import Arena
    from memsched.torch.compiled.compiled_plan import CompiledPlan
    from memsched.torch.compiled.groups import plans
    from memsched.torch.compiled.resident import Resident
    from memsched.torch.convolutions import algorithms
    from memsched.torch.large import on_host
    from memsched.torch.model_plan import TorchPlan, plan
    from memsched.torch.preflight import fit
    from memsched.torch.step_plan import StepPlan
    from memsched.torch.steps import plan_step
    from memsched.torch.verify import Verified

__all__ = [
    "Arena",
    "CaptureError",
    "CompiledPlan",
    "Fit",
    "Resident",
    "Steady",
    "StepPlan",
    "TorchPlan",
    "Verified",
    "Way",
    "algorithms",
    "fit",
    "on_host",
    "plan",
    "plan_step",
    "plans",
    "profile",
]

# They trace or compile with parts of torch that nothing else here needs, and that take seconds to import.
_LATER = {
    "Arena": "memsched.torch.arena.served",
    "CompiledPlan": "memsched.torch.compiled.plan",
    "Resident": "memsched.torch.compiled.resident",
    "TorchPlan": "memsched.torch.model_plan",
    "Verified": "memsched.torch.verify",
    "algorithms": "memsched.torch.convolutions",
    "fit": "memsched.torch.preflight",
    "on_host": "memsched.torch.large",
    "plan": "memsched.torch.model_plan",
    "StepPlan": "memsched.torch.step_plan",
    "plan_step": "memsched.torch.steps",
    "plans": "memsched.torch.compiled.groups",
}


def __getattr__(name: str) -> object:
    """Import what is in `_LATER` when it is first used."""
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'memsched.torch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
