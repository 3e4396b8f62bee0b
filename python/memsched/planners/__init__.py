"""The planners: one file each, and one line here. Lists follow the order of `__all__`, and so do ties."""

from memsched.planners.chain.autoswap import autoswap
from memsched.planners.chain.dynprog import dynprog
from memsched.planners.chain.greedy import greedy
from memsched.planners.chain.offload import offload
from memsched.planners.chain.tflms import tflms
from memsched.planners.chain.vdnn import vdnn
from memsched.planners.graph.by_kind import by_kind
from memsched.planners.graph.modnn import modnn
from memsched.planners.graph.olla import olla
from memsched.planners.graph.pooch import pooch
from memsched.planners.graph.selective import selective
from memsched.planners.graph.superneurons import superneurons
from memsched.planners.graph.swap_all import swap_all
from memsched.planners.graph.swap_opt import swap_opt
from memsched.planners.graph.vdnn_plus import vdnn_plus
from memsched.planners.graph.vdnn_sync import vdnn_sync
from memsched.planners.remat.checkmate import checkmate
from memsched.planners.remat.pofo import pofo
from memsched.planners.remat.rotor import rotor

__all__ = [  # noqa: RUF022
    "offload",
    "pofo",
    "rotor",
    "dynprog",
    "greedy",
    "vdnn",
    "tflms",
    "autoswap",
    "selective",
    "modnn",
    "olla",
    "pooch",
    "swap_opt",
    "swap_all",
    "by_kind",
    "superneurons",
    "vdnn_sync",
    "vdnn_plus",
    "checkmate",
]
