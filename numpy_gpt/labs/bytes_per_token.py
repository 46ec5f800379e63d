"""How many bytes a token of GPT-2's stands for: English, German, code, emoji."""

from __future__ import annotations

import argparse
import inspect
from typing import TYPE_CHECKING

from ..data import load_text
from ..tokenizer import GPT2Tokenizer
from .lab import Finding, Lab, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENGLISH = """\
The first snow fell in the night, and nobody in the village had expected it. When the children looked out of the
window in the morning, the garden was gone: no path, no hedge, only a white field that ended somewhere at the edge
of the forest. Their grandmother put the kettle on and said that the bus would certainly not come today. So they
stayed at home, baked bread, and listened to the old stories that she only told in winter.
"""
GERMAN = """\
Der erste Schnee fiel in der Nacht, und niemand im Dorf hatte ihn erwartet. Als die Kinder am Morgen aus dem Fenster
sahen, war der Garten verschwunden: kein Weg, keine Hecke, nur ein weißes Feld, das irgendwo am Waldrand endete. Die
Großmutter setzte den Kessel auf und sagte, der Bus werde heute bestimmt nicht kommen. Also blieben sie zu Hause,
backten Brot und hörten die alten Geschichten, die sie nur im Winter erzählte.
"""
EMOJI = "😀😂🥰😎🤔😴👍👏🙏💪🎉🎂🎁🚀🚲🚗🌍🌙⭐🔥🌈🍎🍕🍺🐍🐶🐱🦊🌳🌻"


def texts() -> dict[str, str]:
    """Return the texts to measure by name, each written here or part of every Python."""
    help_topics = load_text("stdlib")
    prose = (part for part in help_topics.split("\n\n") if not part.startswith((" ", "*", "-")))
    return {
        "English, a story": ENGLISH,
        "English, Python's help": "\n\n".join(prose),
        "German, the same story": GERMAN,
        "Python code": inspect.getsource(argparse),
        "emoji": EMOJI,
    }


def measure(seed: int) -> Result:
    tokenizer = GPT2Tokenizer()
    n_bytes = {name: len(text.encode("utf-8")) for name, text in texts().items()}
    n_tokens = {name: len(tokenizer.encode(text)) for name, text in texts().items()}
    ratio = {name: n_bytes[name] / n_tokens[name] for name in n_bytes}
    story, topics, german, code, emoji = ratio
    english = min(ratio[story], ratio[topics])
    more = n_tokens[german] / n_tokens[story]
    indentation = bytes_in_spaces(inspect.getsource(argparse))

    def line(name: str) -> str:
        return f"{ratio[name]:.2f}: {n_bytes[name]:,} bytes, {n_tokens[name]:,} tokens"

    findings = (
        Finding("≈ 4 bytes a token in English: a story", line(story), abs(ratio[story] - 4) < 1),
        Finding("≈ 4 bytes a token in English: Python's help", line(topics), abs(ratio[topics] - 4) < 1),
        Finding(
            "bytes / 4 is a rule for English: German has fewer bytes a token", line(german), ratio[german] < english
        ),
        Finding("code has fewer", line(code), ratio[code] < english),
        Finding("emoji have fewer", line(emoji), ratio[emoji] < english),
    )
    values = dict(zip(("english_story", "english_help", "german", "code", "emoji"), ratio.values()))
    values |= {
        "german_tokens_per_english": more,
        "tokens_per_emoji": n_tokens[emoji] / len(EMOJI),
        "code_indentation": indentation,
    }
    note = (
        "GPT-2's merges were learned from English web pages, so an English word is mostly one token. The same story "
        f"in German takes {more:.1f} times as many. Each space of an indentation but the last is a token by itself, "
        f"and {indentation:.0%} of the code's bytes are such spaces. An emoji is four bytes in "
        f"{values['tokens_per_emoji']:.1f} tokens."
    )

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        bars = ax.barh(list(ratio), list(ratio.values()), color=["C0", "C0", "C1", "C2", "C3"])
        ax.bar_label(bars, fmt="%.2f", padding=4)
        ax.axvline(4, color="black", linestyle="--", label="the lesson's 4")
        ax.invert_yaxis()
        ax.set(title="Bytes a token, GPT-2's BPE", xlabel="UTF-8 bytes / tokens", xlim=(0, 5.5))
        ax.legend(loc="lower right")

    return Result(findings, values, note, draw)


def bytes_in_spaces(code: str) -> float:
    """Return the share of code's bytes that are indentation."""
    indentation = sum(len(line) - len(line.lstrip(" ")) for line in code.splitlines())
    return indentation / len(code.encode("utf-8"))


LAB = Lab(
    name="bytes_per_token",
    section="intro",
    claim="the compression ratio turns bytes into ≈ bytes / 4 tokens",
    measure=measure,
)
