"""OLLA's integer programs over HiGHS (Steiner et al., 2022): the order of the ops, addresses, and both at once.

They are exact on small graphs. Needs highspy: `pip install memsched[ilp]`.
"""

from __future__ import annotations

from memsched.arena.ilp.joint import JointSolution, joint_ilp
from memsched.arena.ilp.order import OrderSolution, order_ilp
from memsched.arena.ilp.place import place_ilp

__all__ = ["JointSolution", "OrderSolution", "joint_ilp", "order_ilp", "place_ilp"]
