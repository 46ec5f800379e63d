"""Exercises: the forward is given, the backward is yours to write, the gradient checker says how far it is.

    numpy-gpt exercise list
    numpy-gpt exercise start layernorm          writes layernorm.py
    numpy-gpt exercise check layernorm.py

Every op of the lesson, the block, the tied head inside a whole model, and AdamW. A stub's forward
is the package's own source, and the package's own backward is the solution.
"""

from .catalogue import EXERCISES, exercise
from .command import check, list_exercises, start
from .exercise import Exercise, NotYet

__all__ = ["EXERCISES", "Exercise", "NotYet", "check", "exercise", "list_exercises", "start"]
