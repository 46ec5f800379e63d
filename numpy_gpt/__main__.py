"""python -m numpy_gpt: the same as the command numpy-gpt."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
