"""The budget on the terminal, and as JSON."""

import io
import json

import pytest
from rich.console import Console

from numpy_gpt import Config, budget_tables
from numpy_gpt.budget import RULE, budget, step_ops
from numpy_gpt.budget_tables import command, print_budget

CONFIG = Config(V=13, T_max=8, d=12, h=3, L=2)


def keys(tree):
    """Return the keys of nested dicts; of a list, those of its first entry."""
    if isinstance(tree, dict):
        return {name: keys(part) for name, part in tree.items()}
    return [keys(tree[0])] if isinstance(tree, list) and isinstance(tree[0], dict) else None


def words(text):
    return dict.fromkeys(text.split())


def test_json_keys_are_stable(capsys):
    assert command(CONFIG, 2, 5, as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert keys(found) == {
        "config": words("V T_max d h L causal scale norm tie gelu eps"),
        **words("B T dtype"),
        "tensors": [words("part name formula letters shape dtype bytes memory times")],
        "parameters": words("emb attn_per_block mlp_per_block norms_and_biases head blocks N N_lesson"),
        "flops": {
            "ops": [
                words(
                    "part name op formula times forward backward bytes_forward bytes_backward "
                    "intensity_forward intensity_backward"
                )
            ],
            **words("rule forward backward step bytes intensity"),
            "per_token": words("forward backward train 2N 4N 6N"),
            **words("update update_bytes"),
        },
        "attention": words("forward backward masked_forward masked_backward"),
        "memory": words("parameters gradients moments activations workspace peak"),
        "crossover": [words("share T T_block")],
        "run": words("tokens C counted gflop_per_second step_seconds hours hours_counted"),
    }
    assert found == budget(CONFIG, 2, 5)


def test_terminal_is_plain_when_piped(capsys):
    config = Config.preset("gpt2")
    assert command(config, 4, 64, tokens=2.5e9, rate=150) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "…" not in text
    told = " ".join(text.split())
    found = budget(config, 4, 64)
    for number in (found["flops"]["forward"], found["flops"]["backward"], *found["parameters"].values()):
        assert f"{number:,}" in told
    for number in found["memory"].values():
        assert f"{number:,}" in told
    for part in ("(B, h, T, T) (4, 12, 64, 64)", "W_te[idx] + W_pe[:T]", "T = 658", "T = 3,287", "3,457 hours"):
        assert part in told


@pytest.mark.parametrize("changes", [{}, dict(tie=False, gelu="exact"), dict(norm="post", causal=False, scale=False)])
def test_terminal_shows_every_op(changes, capsys):
    config = Config(V=13, T_max=8, d=12, h=3, L=2, **changes)
    assert command(config, 1, 1) == 0
    text = capsys.readouterr().out
    assert all(op.formula in text for op in step_ops(config, 1, 1))


def test_terminal_tells_the_rule_and_what_tiles_leave_out(capsys):
    command(Config.preset("gpt2"), 1, 1024)
    told = " ".join(capsys.readouterr().out.split())
    assert RULE in told
    counted = budget(Config.preset("gpt2"), 1, 1024)
    whole = sum(t["times"] * t["bytes"] for t in counted["tensors"] if t["memory"] == "saved")
    assert whole - counted["memory"]["activations"] == 4 * 12 * 12 * (1024**2 - 128 * 128 * 36)
    assert "264.2 MB of attn, all masked, are never made" in told
    command(Config.preset("gpt2"), 1, 128)
    assert "tiles" not in capsys.readouterr().out


@pytest.mark.parametrize("columns", [40, 65, 80])
def test_nothing_is_cut_on_a_narrow_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system=None, width=columns)
    monkeypatch.setattr(budget_tables, "new_console", lambda: console)
    print_budget(budget(Config.preset("gpt2"), 4, 64))
    assert "…" not in file.getvalue()


def test_terminal_fits_80_columns(capsys):
    command(Config.preset("gpt2"), 4, 1024, tokens=1e10, rate=1000)
    assert max(len(line.rstrip()) for line in capsys.readouterr().out.splitlines()) <= 80
