"""numpy_gpt: GPT-2 in NumPy, every gradient written by hand."""

from .config import PRESETS, Config
from .model import Model, Step
from .optim import AdamW
from .parameters import Parameters

__all__ = ["PRESETS", "AdamW", "Config", "Model", "Parameters", "Step"]
__version__ = "0.1.0"
