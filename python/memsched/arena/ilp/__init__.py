"""Integer programs solved by HiGHS: OLLA's (Steiner et al., 2022) for the order of the ops, the addresses, and both
at once, and Checkmate's (Jain et al., 2020) for recomputation.

They are exact on small graphs. Needs highspy: `pip install memsched[ilp]`.
"""

from __future__ import annotations

from memsched.arena.ilp.joint import JointSolution, joint_ilp
from memsched.arena.ilp.order import OrderSolution, order_ilp
from memsched.arena.ilp.place import place_ilp

__all__ = ["JointSolution", "OrderSolution", "joint_ilp", "order_ilp", "place_ilp"]
