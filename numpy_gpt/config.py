"""The shape of a model, in the lesson's letters, and the presets of GPT-2."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from numbers import Integral, Real
from typing import Any


@dataclass(frozen=True)
class Config:
    """Everything that decides a model's parameters and its forward pass.

    V vocabulary size, T_max longest sequence, d model width, h heads, L blocks (lesson §1).
    The switches default to the lesson's block; its experiments turn them:

    causal  position t attends to j ≤ t only (§2)
    scale   scores are divided by √d_head (§2)
    norm    "pre": x + f(LN(x)); "post": LN(x + f(x)) (§4). Both end in the final LN.
    tie     the head is W_te.T; untied, it has a matrix W_head (V, d) of its own (§5)
    gelu    "tanh": GPT-2's approximation; "exact": x·Φ(x) (§3)
    eps     the ε inside LayerNorm's square root

    Raises ValueError for a value that makes no model, d mod h ≠ 0 among them.
    """

    V: int = 50257
    T_max: int = 1024
    d: int = 768
    h: int = 12
    L: int = 12
    causal: bool = True
    scale: bool = True
    norm: str = "pre"
    tie: bool = True
    gelu: str = "tanh"
    eps: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("V", "T_max", "d", "h", "L"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
                raise ValueError(f"Config.{name} must be a whole number of at least 1, got {value!r}")
            object.__setattr__(self, name, int(value))  # NumPy's whole numbers do not go into JSON
        for name in ("causal", "scale", "tie"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"Config.{name} must be True or False, got {getattr(self, name)!r}")
        for name, choices in (("norm", ("pre", "post")), ("gelu", ("tanh", "exact"))):
            if getattr(self, name) not in choices:
                raise ValueError(f"Config.{name} must be one of {choices}, got {getattr(self, name)!r}")
        try:
            eps = float(self.eps) if isinstance(self.eps, Real) and not isinstance(self.eps, bool) else math.nan
        except OverflowError:  # a whole number beyond every float
            eps = math.inf
        if not 0 < eps < math.inf:
            raise ValueError(f"Config.eps must be a finite number above 0, got {self.eps!r:.80}")
        object.__setattr__(self, "eps", eps)
        if self.d % self.h:
            h = min(self.h, self.d)
            nearest = next(near for k in range(h) for near in (h - k, h + k) if self.d % near == 0)
            raise ValueError(
                f"d = {self.d} is not divisible by h = {self.h} heads; the nearest h that divides it is {nearest}"
            )

    @property
    def d_head(self) -> int:
        """The width of one head, d / h."""
        return self.d // self.h

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Config:
        """Return the preset called name, with changes: `Config.preset("char", V=96)`."""
        if name not in PRESETS:
            raise ValueError(f"no preset called {name!r}; there are {', '.join(PRESETS)}")
        return cls(**{**PRESETS[name], **changes})

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Config:
        """Return the Config with these values; an unknown name is a ValueError."""
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(f"Config has no {', '.join(unknown)}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return the values by name, ready for JSON."""
        return asdict(self)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return every parameter's name and shape, in the order of the forward pass."""
        d = self.d
        shapes: dict[str, tuple[int, ...]] = {"W_te": (self.V, d), "W_pe": (self.T_max, d)}
        for block in range(self.L):
            shapes |= {f"block.{block}.{name}": shape for name, shape in self.block_shapes().items()}
        shapes |= {"ln_f.gamma": (d,), "ln_f.beta": (d,)}
        if not self.tie:
            shapes["W_head"] = (self.V, d)
        return shapes

    def block_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the names and shapes of one block's parameters, in the order of the forward pass."""
        d = self.d
        return {
            "ln_1.gamma": (d,),
            "ln_1.beta": (d,),
            "W_qkv": (d, 3 * d),
            "b_qkv": (3 * d,),
            "W_o": (d, d),
            "b_o": (d,),
            "ln_2.gamma": (d,),
            "ln_2.beta": (d,),
            "W_1": (d, 4 * d),
            "b_1": (4 * d,),
            "W_2": (4 * d, d),
            "b_2": (d,),
        }

    def n_parameters(self) -> int:
        """Return the exact number of parameters, N. The tied head counts once, as W_te."""
        tables = (self.V + self.T_max) * self.d + (0 if self.tie else self.V * self.d)  # W_te, W_pe, W_head
        ln_f = 2 * self.d
        return tables + self.L * sum(map(math.prod, self.block_shapes().values())) + ln_f


# GPT-2's four sizes (Radford et al., 2019), and three small ones that a laptop trains.
PRESETS: dict[str, dict[str, int]] = {
    "gpt2": dict(V=50257, T_max=1024, d=768, h=12, L=12),
    "gpt2-medium": dict(V=50257, T_max=1024, d=1024, h=16, L=24),
    "gpt2-large": dict(V=50257, T_max=1024, d=1280, h=20, L=36),
    "gpt2-xl": dict(V=50257, T_max=1024, d=1600, h=25, L=48),
    "tiny": dict(V=256, T_max=32, d=48, h=3, L=2),
    "char": dict(V=65, T_max=64, d=128, h=4, L=4),
    "mini": dict(V=256, T_max=256, d=256, h=8, L=6),
}
