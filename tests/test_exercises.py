import ast
import inspect
import io
import os
import re

import numpy as np
import pytest
from rich.console import Console

from numpy_gpt import AdamW, Config, Model, exercises
from numpy_gpt.exercises import EXERCISES, NotYet
from numpy_gpt.exercises import adamw as adamw_exercise
from numpy_gpt.exercises.command import Contest, speed
from numpy_gpt.exercises.stub import in_numpy, names_in
from numpy_gpt.gradcheck import command
from numpy_gpt.gradcheck.command import load

OPS = [name for name in EXERCISES if name not in ("tied_head", "adamw")]
TOOLS = ("scatter_add",)  # of the package's own backwards, and of no stub


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("numpy_gpt.exercises.command.SECONDS", 0)
    monkeypatch.setattr("numpy_gpt.exercises.tied_head.SMALL", Config(V=6, T_max=5, d=3, h=1, L=1))  # seconds less
    return tmp_path


def unwritten_part(name):
    """Return the stub up to the function to write, and whatever the package needs to fill the rest."""
    return re.split(r"(?m)^ *def (?:\w+_backward|backward|update)\(", EXERCISES[name].stub())[0]


def solved(name):
    """Return the stub with the package's own function in it."""
    if name == "tied_head":
        answer = [Model.backward]
    elif name == "adamw":
        answer = [AdamW.update, AdamW._update]
    else:
        answer = [EXERCISES[name].pair[1]]
    module = inspect.getmodule(answer[0])
    code = "\n".join(in_numpy(inspect.getsource(function)) for function in answer)
    used = names_in(f"class _:\n{code}" if code.startswith(" ") else code)
    missing = sorted((used & vars(module).keys()) - set(re.findall(r"\w+", unwritten_part(name))))
    imports = [f"from {module.__name__} import {needed}" for needed in missing]
    return "\n".join(["from __future__ import annotations", unwritten_part(name) + code, *imports])


def write(folder, name, text):
    path = folder / f"my_{name}.py"
    path.write_text(text, encoding="utf-8")
    return path


def answered(folder, name, body):
    """Write the stub with body in place of its last line, which raises."""
    head, _, _ = EXERCISES[name].stub().rpartition("raise NotImplementedError")
    indent = re.search(r" *$", head)[0]
    return write(folder, name, head + f"\n{indent}".join(body))


def checked(path):
    module = load(path)
    return EXERCISES[module.EXERCISE].check(module)


def diagnoses(report):
    return {line.name: line.diagnosis for line in report.failures}


# Every exercise


@pytest.mark.parametrize("name", EXERCISES)
def test_stub_fails_as_not_yet_written(folder, capsys, name):
    assert exercises.start(name) == 0
    assert exercises.check(f"{name}.py") == 1
    told = capsys.readouterr().out
    assert f"{EXERCISES[name].function} is not written yet." in told
    assert f"numpy-gpt exercise check {name}.py --hint 1" in told
    assert "Traceback" not in told


@pytest.mark.parametrize("name", EXERCISES)
def test_the_package_solves_it(folder, capsys, name):
    path = write(folder, name, solved(name))
    assert exercises.check(path) == 0, capsys.readouterr().out
    told = " ".join(capsys.readouterr().out.split())
    assert f"{EXERCISES[name].function} is right." in told
    assert re.search(r"It takes [\d.]+ times as long as ours: \S+ ms against \S+ ms \(one run each at", told)
    assert "hint" not in told


@pytest.mark.parametrize("name", EXERCISES)
def test_stub_reads_well(name):
    stub = EXERCISES[name].stub()
    assert ast.get_docstring(ast.parse(stub))
    assert not re.search(r"\b(xp|array_module)\b", stub)
    assert max(map(len, stub.splitlines())) <= 120
    imported = re.findall(r"^(?:from|import) (\w+)", stub, re.MULTILINE)
    assert set(imported) <= {"math", "numpy", "numpy_gpt"}
    assert not any(tool in stub for tool in TOOLS)
    compile(stub, name, "exec")


@pytest.mark.parametrize("name", OPS)
def test_forward_is_the_package_s_own(name):
    forward = EXERCISES[name].pair[0]
    assert in_numpy(inspect.getsource(forward)) in EXERCISES[name].stub()


@pytest.mark.parametrize("name", EXERCISES)
def test_stub_does_not_hold_the_answer(name):
    """No line of the package's own function stands in the stub, but signatures and caches unpacked."""
    answer = Model.backward if name == "tied_head" else AdamW._update
    if name in OPS:
        answer = EXERCISES[name].pair[1]
    lines = {line.strip() for line in in_numpy(inspect.getsource(answer)).splitlines()}
    lines = {line for line in lines if "=" in line and not line.endswith(("= cache", ":", "cache_ln_f, cache_head"))}
    stub = EXERCISES[name].stub().partition("def forward" if name == "tied_head" else "EXERCISE")[2]
    after_forward = stub[stub.rindex("def ") :]
    assert not [line for line in lines if line in after_forward]


@pytest.mark.parametrize("name", EXERCISES)
def test_hints(name):
    assert len(EXERCISES[name].hints) == 3
    for hint in EXERCISES[name].hints:
        assert 60 < len(hint) < 520
        assert hint.endswith((".", "?"))


# Typical wrong answers


def test_transposed_dW(folder):
    path = answered(
        folder,
        "linear",
        [
            "dy_rows = dy.reshape(-1, W.shape[1])",
            "dW = dy_rows.T @ x_rows",
            "return (dy_rows @ W.T).reshape(x_shape), dW, dy_rows.sum(axis=0)",
        ],
    )
    assert "transposed" in diagnoses(checked(path))["dW"]


def layernorm(folder, dx):
    sums = "(dy * xhat).reshape(-1, 12).sum(axis=0), dy.reshape(-1, 12).sum(axis=0)"
    return answered(folder, "layernorm", ["g = dy * gamma", f"return rstd * ({dx}), {sums}"])


def test_forgotten_mean_term(folder):
    report = checked(layernorm(folder, "g - xhat * (g * xhat).mean(axis=-1, keepdims=True)"))
    assert "the term −mean(upstream · γ) of a row is missing" in diagnoses(report)["dx"]


def test_forgotten_variance_term(folder):
    report = checked(layernorm(folder, "g - g.mean(axis=-1, keepdims=True)"))
    assert "the term −x̂ · mean(upstream · γ · x̂) of a row is missing" in diagnoses(report)["dx"]


def tied_head(folder, last):
    return answered(
        folder,
        "tied_head",
        [
            "g = self.params.zeros_like() if grads is None else grads",
            "_, block_backward = BLOCK[self.config.norm]",
            'dx, g["W_te"] = head_backward(dlogits, cache_head)',
            'dx, g["ln_f.gamma"], g["ln_f.beta"] = layernorm_backward(dx, cache_ln_f)',
            "for number in reversed(range(self.config.L)):",
            "    dx = block_backward(dx, cache_blocks[number], g.block(number))",
            'dW_te, g["W_pe"] = embedding_backward(dx, cache_embedding)',
            last,
            "return g",
        ],
    )


def test_the_third_hint_of_the_tied_head_solves_it(folder):
    assert checked(tied_head(folder, 'g["W_te"] += dW_te')).ok


@pytest.mark.parametrize(("last", "share"), [("pass", "embedding"), ('g["W_te"] = dW_te', "head")])
def test_missing_share_of_the_tied_matrix(folder, last, share):
    report = checked(tied_head(folder, last))
    assert f"the tied term, the {share}'s share, is missing" in diagnoses(report)["dW_te"]


@pytest.mark.parametrize("numbers", ["range(1)", "(0,) if self.config.L == 1 else (1, 0)"])
def test_a_number_of_blocks_that_is_taken_for_granted(folder, numbers):
    path = tied_head(folder, 'g["W_te"] += dW_te')
    text = path.read_text(encoding="utf-8").replace("reversed(range(self.config.L))", numbers)
    path.write_text(text, encoding="utf-8")
    report = checked(path)
    assert report.targets == ["tied_head with L = 3, norm = pre"]
    assert not report.ok


def test_repeated_ids(folder):
    path = answered(
        folder,
        "embedding",
        [
            "dW_te, dW_pe = np.zeros(te_shape, dx.dtype), np.zeros(pe_shape, dx.dtype)",
            "dW_pe[: dx.shape[-2]] = dx.reshape(-1, *dx.shape[-2:]).sum(axis=0)",
            "dW_te[idx] += dx",
            "return dW_te, dW_pe",
        ],
    )
    assert "idx repeats" in diagnoses(checked(path))["dW_te"]


def test_forgotten_scale(folder):
    path = answered(
        folder,
        "attend",
        [
            "dscores = softmax_backward(dout @ v.swapaxes(-1, -2), cache_softmax)",
            "return dscores @ k, dscores.swapaxes(-1, -2) @ q, attn.swapaxes(-1, -2) @ dout",
        ],
    )
    report = checked(path)
    assert "2 times" in diagnoses(report)["dq"]  # √d_head = 2
    assert report.targets == ["attend"]


def test_a_case_beyond_the_first_is_checked_too(folder):
    path = answered(
        folder,
        "attend",
        [
            "dscores = softmax_backward(dout @ v.swapaxes(-1, -2), cache_softmax) / q.shape[-1] ** 0.5",
            "return dscores @ k, dscores.swapaxes(-1, -2) @ q, attn.swapaxes(-1, -2) @ dout",
        ],
    )
    report = checked(path)
    assert report.targets == ["attend_plain"]
    assert not report.ok


SQUEEZED = [
    "total = np.squeeze((dattn * attn).sum(axis=-1, keepdims=True))[..., None]",
    "return attn * (dattn - total)",
]
GELU_EXP = [
    "e = np.exp(2 * SQRT_2_OVER_PI * (x + CUBIC * x**3))",
    "slope = 4 * e / (e + 1) ** 2 * SQRT_2_OVER_PI * (1 + 3 * CUBIC * x * x)",
    "return dy * (0.5 * (1 + t) + 0.5 * x * slope)",
]
GELU_CUT = [
    "slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * SQRT_2_OVER_PI * (1 + 3 * CUBIC * x * x)",
    "return dy * np.where(x > 6, 0, slope)",
]
CROSS_ENTROPY = [
    "n = {n}",
    "dlogits = probs * (dloss / n)",
    "dlogits[rows, targets] -= dloss / n",
    "dlogits[~counted] = 0",
    "return dlogits.reshape(shape)",
]
ATTEND_2 = [
    "dscores = softmax_backward(dout @ v.swapaxes(-1, -2), cache_softmax) / (2 if scale else 1)",
    "return dscores @ k, dscores.swapaxes(-1, -2) @ q, attn.swapaxes(-1, -2) @ dout",
]
LAYERNORM_12 = [
    "g = dy * gamma",
    "dx = rstd * (g - g.mean(axis=-1, keepdims=True) - xhat * (g * xhat).mean(axis=-1, keepdims=True))",
    "return dx, (dy * xhat).reshape(-1, 12).sum(axis=0), dy.reshape(-1, 12).sum(axis=0)",
]


UNPACKED = {
    "qkv": [
        "B, h, T, d_head = dqkv[0].shape",
        "rows = [dt.transpose(0, 2, 1, 3).reshape(B, T, h * d_head) for dt in dqkv]",
        "return linear_backward(np.concatenate(rows, axis=-1), cache)",
    ],
    "attend": [
        "B, h, T, d_head = q.shape",
        "dscores = softmax_backward(dout @ v.swapaxes(-1, -2), cache_softmax)",
        "if scale: dscores = dscores / d_head**0.5",
        "return dscores @ k, dscores.swapaxes(-1, -2) @ q, attn.swapaxes(-1, -2) @ dout",
    ],
    "attention": [
        "B, T, d = dout.shape",
        "dout, dW_o, db_o = linear_backward(dout, cache_o)",
        "dqkv = attend_back(dout.reshape(B, T, h, d // h).transpose(0, 2, 1, 3), cache_attend)",
        "return *qkv_backward(dqkv, cache_qkv), dW_o, db_o",
    ],
    "block": ["B, T, d = dx.shape"],
}


@pytest.mark.parametrize("name", UNPACKED)
def test_no_more_axes_than_the_stub_promises(folder, name):
    body = UNPACKED[name]
    path = block(folder, [LN_1, *body, "return dx + dy"]) if name == "block" else answered(folder, name, body)
    report = checked(path)
    assert report.ok, str(report)
    assert "ranks" not in {line.check for line in report.lines}


@pytest.mark.parametrize(
    ("name", "body", "where"),
    [
        ("gelu", GELU_EXP, "gelu at |x| up to 100"),
        ("gelu", GELU_CUT, "gelu at |x| up to 100"),
        ("softmax", SQUEEZED, "softmax at scores (3, 1, 5)"),
        ("cross_entropy", [CROSS_ENTROPY[0].format(n="n_counted"), *CROSS_ENTROPY[1:]], "no target that is counted"),
        ("attend", ATTEND_2, "attend at q (1, 1, 3, 5)"),
        ("layernorm", LAYERNORM_12, "layernorm at x (3, 5)"),
    ],
    ids=["exp overflows", "cut at 6", "squeeze", "none counted", "√d_head is 2", "d is 12"],
)
def test_right_at_the_standard_inputs_only(folder, name, body, where):
    report = checked(answered(folder, name, body))
    assert not report.ok
    assert where in report.targets[0]


def test_what_passes_elsewhere_too(folder):
    path = answered(folder, "cross_entropy", [CROSS_ENTROPY[0].format(n="max(n_counted, 1)"), *CROSS_ENTROPY[1:]])
    report = checked(path)
    assert report.ok, str(report)
    assert report.targets == ["cross_entropy"]
    assert report.lines[-1].check == "other sizes"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("row", [0, -1])
def test_a_row_that_is_always_lost(folder, seed, row):
    body = [
        "dW_te, dW_pe = np.zeros(te_shape, dx.dtype), np.zeros(pe_shape, dx.dtype)",
        "dW_pe[: dx.shape[-2]] = dx.reshape(-1, *dx.shape[-2:]).sum(axis=0)",
        "np.add.at(dW_te, idx, dx)",
        f"dW_te[{row}] = 0",
        "return dW_te, dW_pe",
    ]
    module = load(answered(folder, "embedding", body))
    assert not EXERCISES["embedding"].check(module, seed).ok


def test_a_block_of_one_width(folder):
    tail = ["dy = dy.reshape(*dy.shape[:-1], 6)", LN_1, "return dx + dy"]
    assert checked(block(folder, tail)).targets == ["block at x (1, 3, 4)"]


def block(folder, tail, mlp="dx = dx + dy"):
    return answered(
        folder,
        "block",
        [
            'dy, *_ = mlp_backward(dx, cache_mlp, out=(g["W_1"], g["b_1"], g["W_2"], g["b_2"]))',
            'dy, *_ = layernorm_backward(dy, cache_ln_2, out=(g["ln_2.gamma"], g["ln_2.beta"]))',
            mlp,
            'dy, *_ = attention_backward(dx, cache_attn, out=(g["W_qkv"], g["b_qkv"], g["W_o"], g["b_o"]))',
            *tail,
        ],
    )


LN_1 = 'dy, *_ = layernorm_backward(dy, cache_ln_1, out=(g["ln_1.gamma"], g["ln_1.beta"]))'


def test_forgotten_skip(folder):
    assert checked(block(folder, [LN_1, "return dx + dy"])).ok
    assert "dx" in diagnoses(checked(block(folder, [LN_1, "return dy"])))


def test_the_upstream_is_not_the_block_s_to_change(folder):
    report = checked(block(folder, [LN_1, "return dx + dy"], mlp="dx += dy"))
    assert "upstream unmodified" in {line.check for line in report.failures}


@pytest.mark.parametrize(
    "tail",
    [
        ['dx_, g["ln_1.gamma"], g["ln_1.beta"] = layernorm_backward(dy, cache_ln_1)', "return dx + dx_"],
        ["dx_, dgamma, dbeta = layernorm_backward(dy, cache_ln_1)", 'g["ln_1.gamma"] += dgamma', "return dx + dx_"],
    ],
    ids=["bound to another array", "added to what stood there"],
)
def test_gradients_not_written_into_g(folder, tail):
    with pytest.raises(NotYet, match=r'g\["ln_1.gamma"\] is never set: write into it'):
        checked(block(folder, tail))


SCALED = "g = scale * grads.flat"


def adamw(folder, decay="self.params.matrices", step="m_hat / (np.sqrt(v_hat) + self.eps)", first=SCALED):
    return answered(
        folder,
        "adamw",
        [
            "lr = self.lr if lr is None else lr",
            "self.t += 1",
            "(beta1, beta2), theta, m, v = self.betas, self.params.flat, self.m.flat, self.v.flat",
            first,
            "m *= beta1",
            "m += (1 - beta1) * g",
            "v *= beta2",
            "v += (1 - beta2) * g**2",
            "m_hat, v_hat = m / (1 - beta1**self.t), v / (1 - beta2**self.t)",
            f"{decay}[...] *= 1 - lr * self.weight_decay",
            f"theta -= lr * {step}",
        ],
    )


def test_adamw_as_the_hints_have_it(folder):
    assert checked(adamw(folder)).ok


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"decay": "self.params.flat"}, "decay reaches biases"),
        ({"decay": "self.params.flat[:0]"}, "weight decay is missing"),
        ({"decay": "self.params.vectors"}, "in place of the matrices"),
        ({"step": "m / (np.sqrt(v_hat) + self.eps)"}, "m is not corrected"),
        ({"step": "m_hat / np.sqrt(v_hat + self.eps)"}, "inside the root"),
        ({"step": "m_hat / (np.sqrt(v) + self.eps)"}, "v is not corrected"),
        ({"step": "m_hat / (v_hat + self.eps)"}, "not by √v̂"),
        ({"first": "g, theta = scale * grads.flat, theta.copy()"}, ""),
        ({"first": "g, lr = scale * grads.flat, self.lr"}, "in place of self.lr"),
        ({"first": "g, lr = scale * grads.flat, lr or self.lr"}, "an lr of 0 counts as none given"),
        ({"first": "g = grads.flat"}, "the scale is left out"),
    ],
)
def test_adamw_gone_wrong(folder, changes, words):
    report = checked(adamw(folder, **changes))
    assert not report.ok
    assert any(words in line.diagnosis for line in report.failures), report


@pytest.mark.parametrize("mistake", adamw_exercise.MISTAKES)
def test_each_mistake_of_adamw_has_a_result_of_its_own(mistake):
    params, *gradients = (adamw_exercise.drawn(seed) for seed in range(1 + len(adamw_exercise.LRS)))
    matrix = np.arange(params.flat.size) < params.matrices.size
    given = [grads.flat for grads in gradients]
    with np.errstate(invalid="ignore"):  # the root of a v of g
        made = adamw_exercise.textbook(params.flat, given, matrix, mistake).theta
    assert not np.allclose(made, adamw_exercise.textbook(params.flat, given, matrix).theta, rtol=1e-6)
    assert adamw_exercise.diagnose(made, params.flat, given, matrix) == adamw_exercise.MISTAKES[mistake]


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("grads.flat *= scale", "update wrote into grads"),
        ("self.t += 1", "after 5 updates self.t is 10"),
    ],
)
def test_adamw_must_leave_the_gradients_and_count(folder, line, note):
    report = checked(adamw(folder, first=f"g = grads.flat\n        {line}"))
    assert note in [line.note for line in report.failures]


def test_adamw_must_keep_its_state(folder):
    with pytest.raises(NotYet, match="has no attribute 'm'"):
        checked(adamw(folder, step="m_hat\n        if self.t == 4:\n            del self.m"))


# The command


def test_list(folder, capsys):
    exercises.start("gelu")
    exercises.start("gelu", "again.py")
    (folder / "a folder.py").mkdir()
    capsys.readouterr()
    assert exercises.list_exercises() == 0
    rows = capsys.readouterr().out.splitlines()
    for name, item in EXERCISES.items():
        row = next(row.split() for row in rows if row.strip().startswith(f"{name} "))
        assert row[0] == name
        assert item.function in row
        assert item.section in " ".join(row)
        assert item.place in item.stub()
    assert any(row.strip().startswith("gelu ") and "again.py, gelu.py" in row for row in rows)


def test_list_on_a_narrow_terminal(folder, monkeypatch):
    exercises.start("gelu")
    text = io.StringIO()
    monkeypatch.setattr("numpy_gpt.exercises.command.new_console", lambda markup: Console(file=text, width=60))
    exercises.list_exercises()
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 60
    assert "…" not in text.getvalue()
    words = text.getvalue().split()
    assert {name for item in EXERCISES.values() for name in (item.name, item.function)} <= set(words)


def test_start_never_overwrites(folder):
    (folder / "gelu.py").write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match=r"gelu\.py exists already"):
        exercises.start("gelu")
    assert (folder / "gelu.py").read_text(encoding="utf-8") == "mine"
    assert exercises.start("gelu", folder / "other.py") == 0
    with pytest.raises(ValueError, match="cannot write"):
        exercises.start("gelu", folder / "no folder" / "gelu.py")


def test_start_writes_only_what_can_be_checked(folder):
    with pytest.raises(ValueError, match=r"--out zz\.txt: .* must end in \.py"):
        exercises.start("gelu", "zz.txt")
    assert list(folder.iterdir()) == []


def test_commands_name_the_file_as_a_shell_takes_it(folder, capsys):
    assert exercises.start("gelu", "my gelu.py") == 0
    command = "numpy-gpt exercise check 'my gelu.py'"
    assert f"    {command}\n" in (folder / "my gelu.py").read_text(encoding="utf-8")
    assert exercises.check("my gelu.py") == 1
    told = capsys.readouterr().out
    assert f"    {command}\n" in told
    assert f"A hint: {command} --hint 1" in told
    assert exercises.check(answered(folder, "gelu", ["return dy"]).rename(folder / "my gelu.py")) == 1
    assert f"reproduce       numpy-gpt exercise check '{folder}/my gelu.py'" in capsys.readouterr().out


def test_check_by_name(folder, capsys):
    with pytest.raises(ValueError, match=r"no file gelu\.py"):
        exercises.check("gelu")
    exercises.start("gelu")
    assert exercises.check("gelu") == 1
    assert "numpy-gpt exercise check gelu.py --hint 1" in capsys.readouterr().out


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files")
def test_a_stub_is_written_whole_or_not_at_all(folder):
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(ValueError, match=r"cannot write gelu\.py: File too large"):
            exercises.start("gelu")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(folder.iterdir()) == []


def test_start_names_the_exercises_there_are():
    with pytest.raises(ValueError, match=r"no exercise called 'gleu'; there are embedding, .*adamw"):
        exercises.start("gleu")


@pytest.mark.parametrize("hint", [1, 2, 3])
def test_hints_come_one_by_one(folder, capsys, hint):
    exercises.start("layernorm")
    assert exercises.check("layernorm.py", hint) == 1
    told = " ".join(capsys.readouterr().out.split())
    hints = [" ".join(text.split()) in told for text in EXERCISES["layernorm"].hints]
    assert hints == [number <= hint for number in (1, 2, 3)]
    offer = "The answer stands in numpy_gpt/ops/layernorm.py" if hint == 3 else f"--hint {hint + 1}"
    assert offer in told


def test_no_such_hint(folder):
    exercises.start("gelu")
    with pytest.raises(ValueError, match="--hint must be 1, 2 or 3, got 4"):
        exercises.check("gelu.py", 4)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (["return 1 / 0"], "gelu_backward raises ZeroDivisionError"),
        (["raise SystemExit(0)"], "gelu_backward raises SystemExit: 0"),
        (["return dy @ dy @ dy"], "gelu_backward raises ValueError"),
        (["return np.nonesuch(dy)"], "gelu_backward raises AttributeError"),
        (["return dy, dy"], "gelu_backward returned 2 gradients for 1: dx"),
    ],
)
def test_what_a_student_s_code_raises_is_one_sentence(folder, capsys, body, words):
    path = answered(folder, "gelu", body)
    assert exercises.check(path.name) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert words in told
    assert "Traceback" not in told
    if "raises" in words:
        line = path.read_text(encoding="utf-8").splitlines().index(f"    {body[0]}") + 1
        assert f"(my_gelu.py, line {line})" in told


def test_forgotten_return(folder, capsys):
    assert exercises.check(answered(folder, "gelu", ["dx = dy * x"])) == 1
    assert "gives None for dx" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("dx = dlogits", "TiedModel.backward returns None; it must return Parameters."),
        ("return {}", "TiedModel.backward returns no gradient of W_te and 15 more; it must return Parameters."),
        ("return [dlogits]", "TiedModel.backward returns a list; it must return Parameters."),
    ],
)
def test_a_model_s_backward_that_returns_no_parameters(folder, capsys, body, words):
    assert exercises.check(answered(folder, "tied_head", [body]).name) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith(words)
    assert told.count("returns") == 1


def test_a_changed_forward_is_noticed(folder, capsys):
    path = write(folder, "gelu", solved("gelu").replace("y *= 0.5", "y *= 0.25"))
    assert exercises.check(path) == 1
    assert "gelu_forward no longer computes what the stub's did" in capsys.readouterr().out


def test_failure_shows_table_diagnosis_and_the_way_on(folder, capsys):
    path = answered(folder, "gelu", ["return 2 * dy * np.asarray(0)"])
    assert exercises.check(path.name) == 1
    told = capsys.readouterr().out
    assert "complex step" in told
    assert "0 everywhere" in told
    assert "numpy-gpt exercise check my_gelu.py --hint 1" in told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "does not say which exercise it is"),
        ('EXERCISE = "gleu"', "there is no such exercise: embedding"),
        ("def f(:", "cannot be imported: SyntaxError"),
        ('EXERCISE = "gelu"\nraise SystemExit(0)', "my_other.py:2 cannot be imported: SystemExit: 0"),
    ],
)
def test_a_file_that_is_no_exercise(folder, text, words):
    with pytest.raises(ValueError, match=words):
        exercises.check(write(folder, "other", text))


def test_a_missing_file():
    with pytest.raises(ValueError, match=r"no file nowhere\.py"):
        exercises.check("nowhere.py")


def test_a_missing_function(folder, capsys):
    assert exercises.check(write(folder, "gelu", 'EXERCISE = "gelu"')) == 1
    assert "my_gelu.py has no gelu_forward." in capsys.readouterr().out


def test_a_solved_file_passes_the_checker_s_own_command(folder, capsys):
    path = write(folder, "layernorm", solved("layernorm"))
    assert command([f"{path}:layernorm"]) == 0


def test_what_leaves_python_when_it_is_timed(folder, capsys):
    large = "    if x.size > 1000:\n        raise SystemExit(0)\n"
    text = solved("gelu").replace("    x, t = cache\n", f"    x, t = cache\n{large}")
    assert exercises.check(write(folder, "gelu", text)) == 0
    assert "gelu_backward raises SystemExit: 0" in " ".join(capsys.readouterr().out.split())


def test_ctrl_c_still_ends(folder):
    with pytest.raises(KeyboardInterrupt):
        checked(answered(folder, "gelu", ["raise KeyboardInterrupt"]))


def test_one_slow_run_is_enough(monkeypatch):
    ticks = iter(np.arange(0, 1000, 50))
    monkeypatch.setattr("numpy_gpt.exercises.command.time.perf_counter", lambda: next(ticks))
    monkeypatch.setattr("numpy_gpt.exercises.command.SECONDS", 1.0)
    calls = []
    told = speed(Contest(lambda: calls.append("theirs"), lambda: calls.append("ours"), "x (2,)"))
    assert calls == ["theirs", "ours"]
    assert "(one run each at x (2,))" in told


@pytest.mark.parametrize(("slow", "at"), [(True, "x (2, 32, 128)"), (False, "x (4, 128, 256)")])
def test_what_is_slow_is_timed_at_a_small_size(folder, capsys, monkeypatch, slow, at):
    monkeypatch.setattr("numpy_gpt.exercises.command.SECONDS", 1.0)
    monkeypatch.setattr("numpy_gpt.exercises.command.seconds_of", lambda function: 10.0 if slow else 1e-3)
    assert exercises.check(write(folder, "gelu", solved("gelu"))) == 0
    assert f"at {at}, float32" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", EXERCISES)
def test_a_brief_contest_is_smaller(folder, name):
    module = load(write(folder, name, solved(name)))
    brief = EXERCISES[name].contest(module, brief=True)
    brief.theirs()
    assert brief.at != EXERCISES[name].contest(module).at


def test_speed_takes_turns(monkeypatch):
    monkeypatch.setattr("numpy_gpt.exercises.command.SECONDS", 60)
    calls = []
    told = speed(Contest(lambda: calls.append("theirs"), lambda: calls.append("ours"), "x (2,)"))
    assert calls == ["theirs", "ours"] * 31
    assert "31 alternating runs at x (2,)" in told
