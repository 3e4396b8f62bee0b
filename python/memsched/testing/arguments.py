"""Arguments of strategies, told by name where they cannot be meant."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, TypeVar, cast

from memsched.support.arguments import public
from memsched.support.checks import count

Strategy = TypeVar("Strategy", bound=Callable[..., Any])

_MOST = 10**6


def checked(**least: int) -> Callable[[Strategy], Strategy]:
    """Refuse a whole number below the one that is given here for it, and what the strategy does not take."""

    def wrap(strategy: Strategy) -> Strategy:
        known = public(strategy)

        def drawn(*args: Any, **named: Any) -> Any:
            for name, value in named.items():
                if name in least:
                    count(name, value, least[name], _MOST)
            return known(*args, **named)

        return cast("Strategy", update_wrapper(drawn, strategy))

    return wrap
