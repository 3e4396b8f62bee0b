"""PyTorch: capture a model, profile it, plan its training step and run the plan.

Needs PyTorch: `pip install 'memsched[torch]'`. `import memsched` alone does not import it; `memsched.torch` does when
it is first used.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError("memsched.torch needs PyTorch: pip install 'memsched[torch]'", name="torch") from _error

from memsched.torch.capture import CaptureError
from memsched.torch.hooked.plan import HookedPlan
from memsched.torch.planning import plan
from memsched.torch.profile import profile
from memsched.torch.resident import Resident
from memsched.torch.torch_plan import TorchPlan

__all__ = ["CaptureError", "HookedPlan", "Resident", "TorchPlan", "plan", "profile"]
