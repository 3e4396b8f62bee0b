"""For tests of planners: random problems, legal random plans, hard instances and a brute force.

Needs hypothesis; ``import memsched`` never imports this package.
"""

from memsched.testing import needed  # noqa: F401  # before all that needs it
from memsched.testing.exact import brute_force, three_partition_chain, two_partition_chain
from memsched.testing.graphs import families, graphs
from memsched.testing.plans import random_schedule, schedules, schedules_of
from memsched.testing.problems import chains, devices, instances
from memsched.testing.repeated import random_repeated, repeated_schedules

__all__ = [
    "brute_force",
    "chains",
    "devices",
    "families",
    "graphs",
    "instances",
    "random_repeated",
    "random_schedule",
    "repeated_schedules",
    "schedules",
    "schedules_of",
    "three_partition_chain",
    "two_partition_chain",
]
