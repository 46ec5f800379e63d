"""The shapes-and-budget page (lesson §7): one HTML file that opens by itself from disk."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from urllib.parse import urlencode

from ..config import Config

PAGE = Path(__file__).with_name("explorer.html")


def page_url(preset: str | None = None) -> str:
    """Return the page's address, at a preset if one is named; the page keeps its settings after the #.

    Raises ValueError for a name that is no preset.
    """
    if preset is None:
        return PAGE.as_uri()
    config = Config.preset(preset)
    sizes = {name: getattr(config, name) for name in ("V", "T_max", "d", "h", "L")}
    return f"{PAGE.as_uri()}#{urlencode({**sizes, 'T': config.T_max})}"


def command(preset: str | None = None, open_page: bool = True) -> int:
    """Print the page's address, and open it in the browser unless told not to; return 0."""
    url = page_url(preset)
    print(url)
    if open_page and not webbrowser.open(url):
        print("No browser was found here: open that file in one.")
    return 0
