# ruff: noqa: N802, N806, N815 -- the paper's symbols, so that formulas can be compared letter by letter
"""POFO's dynamic program and its backward part alone (rotor's problem), as memoised recurrences in exact arithmetic.

Beaumont, Eyraud-Dubois, Shilova (NeurIPS 2021), appendix B, with its errata corrected.  Stages 1..L are layers,
stage L+1 is the loss; a^0 is the network's input; abar^k is everything that F_all^k saves, a^k included; delta^k is
the gradient of a^k and delta^{L+1} = 0.  A segment's stored input is I_x^i: a^{i-1} (x = 0) or abar^{i-1} (x = 1).

`OC` walks forwards through the blocks, `C_A` is the backward part of a block.  In both, A is memory that is held
throughout.  Delta is offloaded data: dF is still on the device when the previous forward operation ends, dB must be
back when the segment's backward part ends.  The link works all the time, so a segment of duration T moves beta T of
it, and an operation that lacks x bytes waits x / beta.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import ceil, inf, isinf

Number = Fraction | float  # a float is infinite: a bandwidth without limit, or the value of an infeasible problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """The paper's lists: a and delta of 0..L, the others of stages 1..L+1; sizes, seconds, M bytes, beta bytes/s.

    oF is the scratch of F_all, tF that of F_ck and F_empty (oF unless given), oB that of B.
    """

    a: Sequence[Number]
    abar: Sequence[Number]
    delta: Sequence[Number]
    oF: Sequence[Number]
    oB: Sequence[Number]
    uF: Sequence[Number]
    uB: Sequence[Number]
    M: Number
    beta: Number
    tF: Sequence[Number] | None = None

    def __post_init__(self) -> None:
        if self.tF is None:
            object.__setattr__(self, "tF", self.oF)
        for name in ("a", "delta", "abar", "oF", "tF", "oB", "uF", "uB"):
            values = tuple(Fraction(v) for v in getattr(self, name))
            if len(values) != len(self.a) or min(values) < 0:
                raise ValueError(f"{name} needs L + 1 = {len(self.a)} numbers >= 0")
            object.__setattr__(self, name, values)
        object.__setattr__(self, "M", Fraction(self.M))
        object.__setattr__(self, "beta", inf if self.beta == inf else Fraction(self.beta))

    @property
    def L(self) -> int:
        return len(self.a) - 1


def value(instance: Instance) -> Fraction | None:
    """OC_0(1, 0, 0, 0), the least duration in the paper's class of schedules; None if infeasible."""
    zero = Fraction(0)
    return _finite(_recurrences(instance)[1](0, 1, zero, zero, zero))


def rotor_value(instance: Instance) -> Fraction | None:
    """C_A(1, L+1, a^0, 0): rematerialisation alone, the loss being the chain's last layer; None if infeasible."""
    return _finite(_recurrences(instance)[0](1, instance.L + 1, instance.a[0], Fraction(0)))


def segment_value(instance: Instance, i: int, j: int, A: Number, Delta: Number) -> Fraction | None:
    """C_A(i, j, A, Delta), with 1 <= i <= j <= L+1; A holds the segment's input; None if infeasible."""
    return _finite(_recurrences(instance)[0](i, j, Fraction(A), Fraction(Delta)))


def in_slots(instance: Instance, slots: int, *, rests: bool = True, inputs: bool = False) -> Fraction | None:
    """The value when A and Delta are whole numbers of slots of M / slots bytes; None if infeasible.

    Rounded up are what is added to A (a^k, abar^k) and every Delta after a transition: Delta_1, Delta_2, Delta_3 of
    C_A, and dF', dB' of OC, once, after I_x^i was added, the loss's included.  Operations' memories and durations
    stay as they are, and so does I_x^i in OC's memories and feasibility tests (but C_A gets A + ceil(I_x^i)).

    rests=False leaves alone those Delta that no state carries: the last ones of both cases of C_A, from which only a
    waiting time is computed, and the loss's.  inputs=True rounds I_x^i everywhere in OC.  Without rounding errors
    (sizes and beta u are whole slots) the value is `value(instance)` in all four readings.
    """
    slot = Fraction(instance.M, slots)

    def in_slot(sizes: Sequence[Number]) -> list[Number]:
        return [size / slot for size in sizes]

    scaled = Instance(
        **{name: in_slot(getattr(instance, name)) for name in ("a", "abar", "delta", "oF", "tF", "oB")},
        uF=instance.uF,
        uB=instance.uB,
        M=slots,
        beta=instance.beta / slot,
    )

    def up(size: Fraction) -> Fraction:
        return Fraction(ceil(size))

    zero = Fraction(0)
    OC = _recurrences(scaled, up, up if rests else _same, up if inputs else _same)[1]
    return _finite(OC(0, 1, zero, zero, zero))


def _same(size: Fraction) -> Fraction:
    return size


def _finite(found: Number) -> Fraction | None:
    return None if isinf(found) else Fraction(found)


Rounding = Callable[[Fraction], Fraction]


def _recurrences(
    p: Instance, up: Rounding = _same, up_rest: Rounding = _same, up_input: Rounding = _same
) -> tuple[Callable[..., Number], Callable[..., Number]]:
    """C_A(i, j, A, Delta) and OC(x, i, A, dF, dB); infinite where infeasible."""
    L, M, beta = p.L, p.M, p.beta
    a, delta = p.a, (*p.delta, Fraction(0))
    assert p.tF is not None
    abar, oF, tF, oB, uF, uB = ((Fraction(0), *column) for column in (p.abar, p.oF, p.tF, p.oB, p.uF, p.uB))

    def M_Fall(i: int, j: int) -> Fraction:
        return delta[j] + abar[i] + oF[i]

    def M_F(k: int, i: int, j: int) -> Fraction:
        """M^k: F_ck^i is the first of a segment's forwards that do not save everything, the others are F_empty."""
        return delta[j] + a[k] + tF[k] + (a[k - 1] if k > i else 0)

    def M_B(i: int) -> Fraction:
        return abar[i] + delta[i] + delta[i - 1] + oB[i]

    def wait(lacking: Fraction) -> Number:
        """Seconds in which the link moves `lacking` bytes."""
        if lacking <= 0 or beta == inf:
            return Fraction(0)
        return lacking / beta if beta > 0 else inf

    def moved(seconds: Number) -> Number:
        """Bytes that the link moves; without limit, all there are, even at once."""
        return beta * seconds if beta < inf else inf

    def rest(Delta: Fraction, seconds: Number) -> Fraction:
        return Fraction(max(Delta - moved(seconds), 0))

    @cache
    def C_A(i: int, j: int, A: Fraction, Delta: Fraction) -> Number:
        return min([C_A_all(i, j, A, Delta), *(C_A_ck(i, m, j, A, Delta) for m in range(i, j))])

    def C_A_all(i: int, j: int, A: Fraction, Delta: Fraction) -> Number:
        """F_all^i, [i+1..j], B^i; for one layer, F_all^i B^i."""
        if max(M_Fall(i, j), M_B(i)) > M - A:
            return inf
        if i == j:
            return uF[i] + uB[i] + wait(max(M_Fall(i, i) - moved(uB[i]), M_B(i)) - M + A + Delta)
        eps_B = wait(M_B(i) - M + A + Delta)
        if isinf(eps_B):
            return inf
        Delta1 = up(rest(Delta, uB[i] + eps_B))
        T = C_A(i + 1, j, A + up(abar[i]), Delta1)
        if isinf(T):
            return inf
        Delta2 = up_rest(rest(Delta1, T))
        eps_F = wait(M_Fall(i, j) - M + A + Delta2)
        return uF[i] + T + uB[i] + eps_F + eps_B

    def C_A_ck(i: int, m: int, j: int, A: Fraction, Delta: Fraction) -> Number:
        """F_ck^i F_empty^{i+1} .. F_empty^m, [m+1..j], [i..m]; the paper's i' is m."""
        if max(M_F(k, i, j) for k in range(i, m + 1)) > M - A:
            return inf
        T2 = C_A(i, m, A, Delta)
        if isinf(T2):
            return inf
        Delta2 = up(rest(Delta, T2))
        T1 = C_A(m + 1, j, A + up(a[m]), Delta2)
        if isinf(T1):
            return inf
        Delta3 = up_rest(rest(Delta2, T1))
        most = max(M_F(k, i, j) - moved(sum(uF[k + 1 : m + 1])) for k in range(i, m + 1))
        return sum(uF[i : m + 1]) + T1 + T2 + wait(most - M + A + Delta3)

    @cache
    def OC(x: int, i: int, A: Fraction, dF: Fraction, dB: Fraction) -> Number:
        stored = abar[i - 1] if x else a[i - 1]
        I = up_input(stored)  # noqa: E741
        found: list[Number] = [inf]
        for T_F, T_B, next_x, next_i, may_keep in blocks(i, I, A + up(stored), A, dF, dB):
            if inf in (T_F, T_B):
                continue
            if i == L + 1:
                found.append(T_F + T_B + wait(up_rest(rest(dF, T_F)) + up_rest(rest(dB, T_B))))
                continue
            here = T_F + T_B
            found.append(here + OC(next_x, next_i, A, up(rest(dF + I, T_F)), up(rest(dB, T_B) + I)))
            if may_keep:
                found.append(here + OC(next_x, next_i, A + up(stored), up(rest(dF, T_F)), up(rest(dB, T_B))))
        return min(found)

    def blocks(
        i: int,
        I: Fraction,  # noqa: E741
        A_and_I: Fraction,
        A: Fraction,
        dF: Fraction,
        dB: Fraction,
    ) -> Iterator[tuple[Number, Number, int, int, bool]]:
        """T_F, T_B, x and i of the block behind, and whether the input may be kept, of every block from i."""
        F, B = M_Fall(i, L + 1), M_B(i)
        if max(F, B) + I <= M - A:
            yield uF[i] + wait(F - M + A + dF + I), uB[i] + wait(B - M + A + dB + I), 1, i + 1, True
        for j in range(i, L + 1):
            need = [M_F(k, i, L + 1) for k in range(i, j + 1)]
            if need[0] + I > M - A or max(need) > M - A:
                break
            most = max(M_F(k, i, L + 1) - moved(sum(uF[i:k])) for k in range(i, j + 1))
            T_F = sum(uF[i : j + 1]) + wait(most - M + A + dF + I)
            yield T_F, C_A(i, j, A_and_I, dB), 0, j + 1, max(need) + I <= M - A

    return C_A, OC
