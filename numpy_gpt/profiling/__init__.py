"""What a training step costs, measured: op by op, beside what `budget` counts and what the machine can do.

    profile = profile_step(model, idx)
    print(profile)
    print(sweep())

The ops are timed from outside, by wrapping them for as long as it takes; the model holds no timers.
"""

from .fits import fit_power, fit_quadratic
from .limits import Limits, measure_bandwidth, measure_gemm_peak, measure_own_gemms
from .pictures import draw_profile, draw_sweep
from .profile import OpProfile, Profile, Timing
from .scaling import Fit, QuadraticShare, Sweep, default_axes, sweep
from .step import profile_step
from .tables import print_profile, print_sweep
from .timers import OpTimer, timed_ops

__all__ = [
    "Fit",
    "Limits",
    "OpProfile",
    "OpTimer",
    "Profile",
    "QuadraticShare",
    "Sweep",
    "Timing",
    "default_axes",
    "draw_profile",
    "draw_sweep",
    "fit_power",
    "fit_quadratic",
    "measure_bandwidth",
    "measure_gemm_peak",
    "measure_own_gemms",
    "print_profile",
    "print_sweep",
    "profile_step",
    "sweep",
    "timed_ops",
]
