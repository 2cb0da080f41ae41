"""The three presets. `auto` is the default; its numbers are the same for every problem."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from aspire.core.schedules import (
    Constants,
    Limits,
    Member,
    Rates,
    Scale,
    median,
    positive,
    robust,
)

TINY = float(np.finfo(np.float64).tiny)
FLATTEST = 1e-12  # least kappa and L: no step size exceeds 1e12 where sites say 0
SLOWLY = 0.999  # of kappa is left at least when the planes are revised
CONVEX = "convex"
WHOLE = "convex, whole sites"
NETWORK = "network"
LOCAL = "network with local steps"
USUAL = {  # c, d, T, b, and whether L_j is followed
    CONVEX: {"coupling": 0.1, "dual": 0.25, "settle": 20.0, "stride": 1.0, "follow": 1.0},
    WHOLE: {"coupling": 0.1, "dual": 0.25, "settle": 2000.0, "stride": 1.0, "follow": 1.0},
    NETWORK: {"coupling": 0.3, "dual": 0.1, "settle": 2000.0, "stride": 1.2, "follow": 0.0},
    LOCAL: {"coupling": 0.1, "dual": 0.25, "settle": 2000.0, "stride": 1.0, "follow": 1.0},
}


def check_limits(limits: object) -> None:
    if not isinstance(limits, Limits):
        raise ValueError(f"limits={limits!r}: expected Limits(a1, a2, a3, a4)")


@dataclass(frozen=True)
class Auto:
    """Rates from the problem's own scale; nothing in it has to be tuned.

    kappa = c max_j u_j L_j;  eta_z = 1/(kappa n), the exact minimiser;  rho2 = d kappa;
    a_w = b/(max(pi_j, q_j) L_j + kappa) / sqrt(1 + reports_j/T);
    rho1 = r |Q|/(n m), m the median of the last known losses;
    c1_t = s m (t+1)^(-1/2);  c2_t = e/kappa (t+1)^(-1/6);  k = max(5, n).
    c, d, T and b: None stands for USUAL, by what is trained (one linear layer: convex) and on what
    (steps settle sooner where mini-batches make noise).
    L_j is the probe's until checked steps say otherwise (`schedules.learn`); kappa and m follow
    whenever the planes are revised, kappa downwards by a thousandth at most. Not so for a network
    whose sites report every step: it sharpens until its steps just hold, whatever they are, so
    that to follow its L_j is to slow down for ever. There L_j stays the probe's and a stronger
    kappa keeps the sites together.
    """

    coupling: float | None = None  # c
    dual: float | None = None  # d
    settle: float | None = None  # T
    stride: float | None = None  # b, below 2
    ascent: float = 0.1  # r
    damping: float = 0.02  # s
    leak: float = 0.001  # e
    forget: float = 0.3
    momentum: float = 0.0  # of a worker's last move in its next one, below 1
    simplex: bool = field(default=True, init=False)
    power: int = field(default=12, init=False)
    checks: bool = field(default=True, init=False)
    limits: Limits = field(default_factory=Limits, init=False)

    def __post_init__(self) -> None:
        positive(ascent=self.ascent, **self.given)
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum}: expected at least 0 and less than 1")

    @property
    def given(self) -> dict[str, float]:
        """What stands in place of USUAL."""
        own = {"coupling": self.coupling, "dual": self.dual}
        own |= {"settle": self.settle, "stride": self.stride}
        return {name: value for name, value in own.items() if value is not None}

    def every(self, n: int) -> int:
        return max(5, n)

    def averaging(self, t: int) -> float:
        return min(1.0, 2.0 / (2.0 + self.forget * t))

    def constants(self, scale: Scale) -> Constants:
        curvature = robust(scale.curvature)
        own = USUAL[scale.kind] | self.given
        return {
            "kappa": max(own["coupling"] * float((scale.upper * curvature).max()), FLATTEST),
            "smoothness": max(float((scale.upper * curvature).sum()), FLATTEST),
            "level": max(median(np.abs(scale.losses)), TINY),
            **own,
        }

    def revised(self, constants: Constants, scale: Scale) -> Constants:
        new = self.constants(scale)
        return {**new, "kappa": max(new["kappa"], SLOWLY * constants["kappa"])}

    def rates(self, constants: Constants, t: int, planes: int, n: int, active: int) -> Rates:
        kappa = constants["kappa"]
        level = constants["level"]
        return Rates(
            eta_z=1.0 / (kappa * n),
            eta_h=0.0,
            rho1=self.ascent * active / (n * level),
            rho2=constants["dual"] * kappa,
            c1=self.damping * level * (t + 1) ** (-1 / 2),
            c2=self.leak / kappa * (t + 1) ** (-1 / 6),
        )

    def worker_rate(
        self, constants: Constants, t: int, planes: int, n: int, member: Member
    ) -> float:
        full = constants["stride"] / (member.weight * member.curvature + constants["kappa"])
        settled: float = (1.0 + member.reports / constants["settle"]) ** 0.5
        return full / settled

    def central_rates(self, constants: Constants, t: int, planes: int) -> tuple[float, Rates]:
        return 1.0 / constants["smoothness"], self.rates(constants, t, planes, 1, 1)


@dataclass(frozen=True)
class Paper:
    """Equations (11) to (15) as printed: constant steps, c_t = c_0 (t+1)^(-1/6).

    The defaults train the paper's logistic regression; other problems want their own.
    """

    eta_w: float = 0.05
    eta_z: float = 0.05
    eta_h: float = 0.001
    kappa: float = 1.0
    rho1: float = 0.02
    rho2: float = 0.1
    c1: float = 0.1
    c2: float = 0.05
    k: int = 10
    limits: Limits = field(default_factory=lambda: Limits(a1=1e3, a2=1e3, a3=1.0, a4=1e3))
    simplex: bool = field(default=False, init=False)
    power: int = field(default=0, init=False)
    checks: bool = field(default=False, init=False)
    momentum: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        positive(eta_w=self.eta_w, eta_z=self.eta_z, eta_h=self.eta_h, kappa=self.kappa)
        positive(rho1=self.rho1, rho2=self.rho2, k=self.k)
        check_limits(self.limits)

    def every(self, n: int) -> int:
        return self.k

    def averaging(self, t: int) -> float:
        return 1.0

    def constants(self, scale: Scale) -> Constants:
        return {"kappa": self.kappa, "level": median(np.abs(scale.losses))}

    def revised(self, constants: Constants, scale: Scale) -> Constants:
        return {**constants, "level": median(np.abs(scale.losses))}

    def rates(self, constants: Constants, t: int, planes: int, n: int, active: int) -> Rates:
        fade = (t + 1) ** (-1 / 6)
        return Rates(
            eta_z=self.eta_z,
            eta_h=self.eta_h,
            rho1=self.rho1,
            rho2=self.rho2,
            c1=self.c1 * fade,
            c2=self.c2 * fade,
        )

    def worker_rate(
        self, constants: Constants, t: int, planes: int, n: int, member: Member
    ) -> float:
        return self.eta_w

    def central_rates(self, constants: Constants, t: int, planes: int) -> tuple[float, Rates]:
        return self.eta_w, self.rates(constants, t, planes, 1, 1)


@dataclass(frozen=True)
class Theorem1:
    """The rates under which Theorem 1 is proved. It tests the theory; it does not train.

    c_t = max(theta/(rho (t+1)^(1/6)), floor) with M floor1^2 + N floor2^2 <= epsilon^2/4.
    theta < 1 repairs the paper, whose theta = 1 contradicts its own bound on rho.
    smoothness L: that of L_p; None estimates it from the probes.
    """

    smoothness: float | None = None
    epsilon: float = 0.1
    theta: float = 0.5
    gamma: float = 3.0
    kappa: float = 1.0
    drift: float = 1.0  # k_1 of Assumption 2
    k: int = 10
    until: int | None = None  # T_1: after it the worker step uses M planes and the floors
    limits: Limits = field(default_factory=lambda: Limits(a1=1e3, a2=1e3, a3=1.0, a4=1e3))
    simplex: bool = field(default=False, init=False)
    power: int = field(default=12, init=False)
    checks: bool = field(default=False, init=False)
    momentum: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon, theta=self.theta, kappa=self.kappa, drift=self.drift)
        positive(k=self.k)
        check_limits(self.limits)
        if self.smoothness is not None:
            positive(smoothness=self.smoothness)
        if self.theta >= 1:
            raise ValueError(f"theta={self.theta}: expected less than 1")
        if self.gamma <= 2:
            raise ValueError(f"gamma={self.gamma}: expected more than 2")

    def every(self, n: int) -> int:
        return self.k

    def averaging(self, t: int) -> float:
        return 1.0

    def constants(self, scale: Scale) -> Constants:
        n = scale.n
        L = self.smoothness
        if L is None:
            blocks = scale.upper * robust(scale.curvature) + robust(scale.slope)
            L = float(blocks.max()) + self.kappa * (n + 1) + 1.0
        tau = scale.staleness if scale.staleness is not None else n
        rho1 = 0.99 * min(2 * (1 - self.theta) / L, 1 / (15 * tau * self.drift * n * L * L))
        return {
            "kappa": self.kappa,
            "level": median(np.abs(scale.losses)),
            "L": L,
            "M": float(scale.most),
            "rho1": rho1,
            "rho2": 2 * (1 - self.theta) / L,
            "floor1": self.epsilon / (8 * scale.most) ** 0.5,
            "floor2": self.epsilon / (8 * n) ** 0.5,
        }

    def revised(self, constants: Constants, scale: Scale) -> Constants:
        return {**constants, "level": median(np.abs(scale.losses))}

    def _fade(self, constants: Constants, t: int, which: int, power: float = 1 / 6) -> float:
        rho = constants[f"rho{which}"]
        floor = constants[f"floor{which}"]
        return float(max(self.theta / (rho * (t + 1) ** power), floor))

    def _eta(self, constants: Constants, planes: float, n: int, c1: float, c2: float) -> float:
        L = constants["L"]
        rho1 = constants["rho1"]
        rho2 = constants["rho2"]
        regular = planes / (rho1 * c1 * c1) + n / (rho2 * c2 * c2)
        spread = rho1 * planes + rho2 * n + 8 * self.gamma * regular
        return 2.0 / (L + L * L * spread)

    def rates(self, constants: Constants, t: int, planes: int, n: int, active: int) -> Rates:
        c1 = self._fade(constants, t, 1)
        c2 = self._fade(constants, t, 2)
        eta = self._eta(constants, planes, n, c1, c2)
        return Rates(eta, eta, constants["rho1"], constants["rho2"], c1, c2)

    def worker_rate(
        self, constants: Constants, t: int, planes: int, n: int, member: Member
    ) -> float:
        if self.until is None or t < self.until:
            c1 = self._fade(constants, t, 1)
            c2 = self._fade(constants, t, 2)
            return self._eta(constants, planes, n, c1, c2)
        return self._eta(constants, constants["M"], n, constants["floor1"], constants["floor2"])

    def central_rates(self, constants: Constants, t: int, planes: int) -> tuple[float, Rates]:
        """eta_w = eta_h = 2/(L + rho1 |A| L^2 + 8 |A| gamma L^2/(rho1 c1_t^2)), c1_t ~ t^(-1/4)."""
        L = constants["L"]
        rho1 = constants["rho1"]
        c1 = self._fade(constants, t, 1, 1 / 4)
        eta = 2.0 / (L + L * L * planes * (rho1 + 8 * self.gamma / (rho1 * c1 * c1)))
        return eta, Rates(eta, eta, rho1, constants["rho2"], c1, 0.0)
