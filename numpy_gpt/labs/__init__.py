"""Labs: each claim of the lesson, measured.

    numpy-gpt lab list
    numpy-gpt lab run score_scale causal_mask --plot pictures
    numpy-gpt lab run all

In a notebook:

    from numpy_gpt.labs import lab, picture
    result = lab("score_scale").measure(seed=0)
    result.findings, result.values, result.note
    picture(result)

A lab takes seconds, needs no network, and finds the same for the same seed, its timings apart.
Where a claim does not hold at a laptop's scale, its finding says so.
"""

from .catalogue import LABS, lab
from .command import list_labs, picture, run, show
from .lab import Finding, Lab, Result

__all__ = ["LABS", "Finding", "Lab", "Result", "lab", "list_labs", "picture", "run", "show"]
