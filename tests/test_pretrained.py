"""Hugging Face's GPT-2 files in and out, against PyTorch: its values in golden/, and live where it is installed."""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import ModuleType

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from numpy_gpt import Config, Model
from numpy_gpt.backend import to_numpy
from numpy_gpt.checkpoint import load_checkpoint, save_checkpoint
from numpy_gpt.convert import convert
from numpy_gpt.evaluation import evaluate_text
from numpy_gpt.generation import generate
from numpy_gpt.pretrained import load_pretrained, save_pretrained

GOLDEN = Path(__file__).parent / "golden" / "pretrained"
CASES = ["square", "shards", "bf16", "f16"]
TOLERANCE = {"float64": 1e-10, "float32": 1e-4}


@pytest.fixture
def folder(tmp_path):
    """A copy of the smallest golden case: d 4, h 2, L 1, V 11, float32, one file."""
    return shutil.copytree(GOLDEN / "square", tmp_path / "größe")


@pytest.fixture
def shards(tmp_path):
    return shutil.copytree(GOLDEN / "shards", tmp_path / "shards")


def weights_of(folder):
    return load_file(folder / "model.safetensors")


def change_json(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")


def random_model(seed, dtype="float32", **options):
    """Return a small model, no parameter of which is 0, 1 or alike another."""
    model = Model(Config(**(dict(V=23, T_max=9, d=12, h=3, L=2) | options)), seed=None, dtype=dtype)
    rng = np.random.default_rng(seed)
    for name, parameter in model.params.items():
        parameter[...] = rng.normal(float(name.endswith("gamma")), 0.3, parameter.shape)
    return model


def assert_same(model, expected):
    assert model.config == expected.config
    assert model.dtype == expected.dtype
    for name, parameter in model.params.items():
        assert parameter.tobytes() == expected.params[name].tobytes(), name


# Against PyTorch


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_golden_logits(case, dtype):
    expected = load_file(GOLDEN / case / "expected.safetensors")
    model = load_pretrained(GOLDEN / case, dtype)
    logits, _ = model.forward(expected["idx"])
    assert logits.dtype == model.dtype == dtype
    np.testing.assert_allclose(logits, expected["logits"], rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_golden_greedy_tokens(case, dtype):
    expected = load_file(GOLDEN / case / "expected.safetensors")
    model = load_pretrained(GOLDEN / case, dtype)
    tokens = list(generate(model, expected["idx"][0], 200, temperature=0))
    assert tokens == expected["greedy"].tolist()


@pytest.mark.parametrize("name", ["block.0.W_o", "block.1.W_o"])
def test_golden_logits_tell_a_transposed_square_matrix(name):
    case = "square" if name == "block.0.W_o" else "shards"
    expected = load_file(GOLDEN / case / "expected.safetensors")
    model = load_pretrained(GOLDEN / case, "float64")
    model.params[name] = model.params[name].T.copy()
    logits, _ = model.forward(expected["idx"])
    assert np.abs(logits - expected["logits"]).max() > 1e-2


def test_options_become_config():
    assert load_pretrained(GOLDEN / "shards").config == Config(
        V=61, T_max=208, d=24, h=3, L=2, gelu="exact", scale=False, tie=False
    )
    assert load_pretrained(GOLDEN / "bf16").config == Config(V=97, T_max=208, d=32, h=4, L=3, eps=1e-3)


def test_loads_on_every_device(xp):
    model = load_pretrained(GOLDEN / "bf16", xp=xp)
    assert model.xp is xp
    assert to_numpy(model.params.flat).tobytes() == load_pretrained(GOLDEN / "bf16").params.flat.tobytes()


# Exact numbers


def write_raw(path, tensors):
    """Write a safetensors file by hand: tensors[name] is (dtype, shape, bytes)."""
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode("utf-8")
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


@pytest.mark.parametrize(("stored", "exponent_bits"), [("BF16", 8), ("F16", 5)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_finite_half_keeps_its_value(folder, stored, exponent_bits, dtype):
    bits = np.arange(2**16)
    mantissa_bits = 15 - exponent_bits
    exponent = bits >> mantissa_bits & 2**exponent_bits - 1
    finite = exponent < 2**exponent_bits - 1
    bits, exponent = bits[finite], exponent[finite]
    fraction = (bits & 2**mantissa_bits - 1) / 2.0**mantissa_bits + (exponent > 0)
    values = (1 - 2.0 * (bits >> 15)) * fraction * 2.0 ** (np.maximum(exponent, 1) - 2 ** (exponent_bits - 1) + 1)
    V = len(bits) // 4
    tensors = {name: ("F32", tensor.shape, tensor.tobytes()) for name, tensor in weights_of(folder).items()}
    tensors["transformer.wte.weight"] = (stored, (V, 4), bits.astype("<u2").tobytes())
    write_raw(folder / "model.safetensors", tensors)
    change_json(folder / "config.json", vocab_size=V)
    W_te = load_pretrained(folder, dtype).params["W_te"]
    assert W_te.dtype == dtype
    assert W_te.tobytes() == values.astype(dtype).reshape(V, 4).tobytes()


def test_double_precision_needs_a_double_precision_model(folder):
    rng = np.random.default_rng(0)
    tensors = {name: rng.standard_normal(tensor.shape) for name, tensor in weights_of(folder).items()}
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors: wte\.weight is F64, which float32 rounds"):
        load_pretrained(folder)
    assert (load_pretrained(folder, "float64").params["W_te"] == tensors["transformer.wte.weight"]).all()


# Every form of the file


def without_prefix(tensors):
    return {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}


def with_buffers(tensors):
    mask = np.tril(np.ones((1, 1, 208, 208), np.float32))
    buffers = {"transformer.h.0.attn.bias": mask, "transformer.h.0.attn.masked_bias": np.float32([-1e4]).reshape(())}
    return tensors | buffers


def with_head(tensors):
    return tensors | {"lm_head.weight": tensors["transformer.wte.weight"].copy()}


def as_openai_published(tensors):
    return without_prefix(with_buffers(tensors)) | {"h.0.attn.bias": np.ones((1, 1, 208, 208), np.uint8)}


@pytest.mark.parametrize("form", [without_prefix, with_buffers, with_head, as_openai_published])
def test_forms_of_the_same_weights(folder, form):
    expected = load_pretrained(folder)
    save_file(form(weights_of(folder)), folder / "model.safetensors")
    assert_same(load_pretrained(folder), expected)


def test_file_in_place_of_its_folder(folder):
    expected = load_pretrained(str(folder))
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    assert_same(load_pretrained(folder / "other.safetensors"), expected)


def test_one_file_goes_before_an_index(folder):
    (folder / "model.safetensors.index.json").write_text("{}", encoding="utf-8")
    load_pretrained(folder)


def test_memory_is_the_parameters_and_a_little(tmp_path):
    model = Model(Config(V=2800, T_max=128, d=128, h=4, L=4))  # W_te has GPT-2's share of all weights
    save_pretrained(model, tmp_path)
    file_bytes, parameter_bytes = (tmp_path / "model.safetensors").stat().st_size, model.params.flat.nbytes
    del model
    tracemalloc.start()
    try:
        load_pretrained(tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert parameter_bytes < peak <= parameter_bytes + 0.5 * file_bytes


# Weights that do not fit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("transformer.h.0.attn.c_proj.bias"), r"missing weight: h\.0\.attn\.c_proj\.bias$"),
        (lambda t: t.pop("transformer.wte.weight"), r"missing weight: wte\.weight$"),
        (lambda t: t.update({"transformer.h.0.extra": np.ones(3)}), r"unknown weight: h\.0\.extra$"),
        (lambda t: t.update({"score.weight": np.ones((2, 4))}), r"unknown weight: score\.weight$"),
        (lambda t: t.update({f"x{n}": np.ones(1) for n in range(9)}), r"unknown weight: x0, .*, x4 and 4 more$"),
        (lambda t: t.update({"transformer.h.1.ln_1.bias": np.ones(4)}), r"holds weights of 2 blocks; .* n_layer = 1$"),
        (
            lambda t: t.update({"transformer.h.0.mlp.c_fc.weight": np.ones((16, 4), np.float32)}),
            r"h\.0\.mlp\.c_fc\.weight has shape \(16, 4\); config\.json makes it \(4, 16\)$",
        ),
        (lambda t: t.update({"transformer.ln_f.bias": np.ones(4, np.int8)}), r"ln_f\.bias is I8, not one of BF16"),
        (
            lambda t: t.update({"lm_head.weight": t["transformer.wte.weight"] + 1}),
            r"lm_head\.weight is not wte\.weight",
        ),
        (lambda t: t.update({"lm_head.weight": np.ones((4, 11))}), r"lm_head\.weight has shape \(4, 11\)"),
        (lambda t: t.update({"wte.weight": t["transformer.wte.weight"]}), r"wte\.weight comes twice"),
    ],
)
def test_weight_that_does_not_fit_is_named(folder, change, message):
    tensors = weights_of(folder)
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"größe.model\.safetensors: " + message):
        load_pretrained(folder)


HOSTILE = ["a\nnumpy-gpt: \x1b[31mall good", "x" * 1_000_000, "\u202eevil\r\u2028"]


def assert_short_line(message, folder):
    """Hold a message to one line of printable characters, of a length that a terminal shows."""
    assert message.isprintable()
    assert len(message) < 500 + len(str(folder))


@pytest.mark.parametrize("name", HOSTILE, ids=["lines", "long", "directions"])
@pytest.mark.parametrize(
    ("names", "what"),
    [(["{}"], "unknown weight"), (["{}1", "{}2", "transformer.{}3"], "unknown"), (["{}", "transformer.{}"], "twice")],
)
def test_hostile_names_make_one_short_line(folder, name, names, what):
    tensors = weights_of(folder) | {template.format(name): np.ones(1) for template in names}
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=rf"größe.model\.safetensors: .*{what}") as info:
        load_pretrained(folder)
    assert_short_line(str(info.value), folder)


def test_hostile_shape_makes_one_short_line(folder):
    tensors = {name: ("F32", tensor.shape, tensor.tobytes()) for name, tensor in weights_of(folder).items()}
    tensors["transformer.ln_f.bias"] = ("F32", [4, *[1] * 200_000], tensors["transformer.ln_f.bias"][2])
    write_raw(folder / "model.safetensors", tensors)
    with pytest.raises(ValueError, match=r"ln_f\.bias has shape \(4, 1, 1.*config\.json makes it \(4,\)$") as info:
        load_pretrained(folder)
    assert_short_line(str(info.value), folder)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_number_that_is_not_finite_is_named(folder, value):
    tensors = weights_of(folder)
    tensors["transformer.h.0.attn.c_attn.weight"][2, 7] = value
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=rf"model\.safetensors: h\.0\.attn\.c_attn\.weight is {value} at \[2, 7\]"):
        load_pretrained(folder)


def test_untied_model_without_its_head(folder):
    change_json(folder / "config.json", tie_word_embeddings=False)
    with pytest.raises(ValueError, match=r"missing weight: lm_head\.weight"):
        load_pretrained(folder)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("model_type", "gpt_neo"),
        ("model_type", None),
        ("activation_function", "relu"),
        ("activation_function", ["gelu_new"]),
        ("scale_attn_by_inverse_layer_idx", True),
        ("reorder_and_upcast_attn", True),
        ("add_cross_attention", True),
        ("pruned_heads", {"0": [1]}),
        ("quantization_config", {"bits": 8}),
        ("n_inner", 8),
        ("n_inner", "16"),
        ("layer_norm_epsilon", 0.0),
        ("layer_norm_epsilon", float("nan")),
        ("layer_norm_epsilon", float("inf")),
        ("layer_norm_epsilon", "1e-5"),
        ("layer_norm_epsilon", True),
        ("layer_norm_epsilon", 0),
        ("layer_norm_epsilon", 10**400),
        ("tie_word_embeddings", None),
        ("scale_attn_weights", 1),
        ("vocab_size", None),
        ("vocab_size", 0),
        ("n_embd", 4.0),
        ("n_head", True),
        ("n_layer", 10**9),
        ("n_embd", 10**4000),
    ],
)
def test_option_that_this_model_cannot_have_is_named(folder, option, value):
    change_json(folder / "config.json", **{option: value})
    with pytest.raises(ValueError, match=rf"größe.config\.json: {option} ") as info:
        load_pretrained(folder)
    assert len(str(info.value)) < 400 + len(str(folder))


def test_option_may_be_what_it_would_be_anyway(folder):
    change_json(folder / "config.json", n_inner=16, pruned_heads={}, quantization_config=None)
    load_pretrained(folder)


def test_epsilon_may_be_a_whole_number(folder):
    change_json(folder / "config.json", layer_norm_epsilon=1)
    eps = load_pretrained(folder).config.eps
    assert (eps, type(eps)) == (1.0, float)


def test_heads_that_do_not_divide_the_width(folder):
    change_json(folder / "config.json", n_head=3)
    with pytest.raises(ValueError, match=r"config\.json: d = 4 is not divisible by h = 3"):
        load_pretrained(folder)


def test_number_of_blocks_without_end(folder):
    change_json(folder / "config.json", n_layer=2**20)
    with pytest.raises(ValueError, match=r"holds weights of 1 blocks; config\.json says n_layer = 1048576"):
        load_pretrained(folder)


# Files that are damaged, foreign or hostile


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_truncated_weights(folder, keep):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"größe.model\.safetensors: "):
        load_pretrained(folder)


@pytest.mark.parametrize("start", [b"\x80\x02}q\x00.", struct.pack("<Q", 10 * 2**30) + b"{", b"PK\x03\x04"])
def test_foreign_weights(folder, start):
    (folder / "model.safetensors").write_bytes(start + np.random.default_rng(0).bytes(5000))
    with pytest.raises(ValueError, match=r"größe.model\.safetensors: "):
        load_pretrained(folder)


@hypothesis.given(data=st.data())
@hypothesis.settings(
    max_examples=int(os.environ.get("NUMPY_GPT_FUZZ", "100")),
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
def test_mutated_weights_are_refused_or_finite(folder, data):
    """A hundred here; NUMPY_GPT_FUZZ=10000 python -m pytest tests/test_pretrained.py -k mutated."""
    content = bytearray((GOLDEN / "square" / "model.safetensors").read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, header - 1) | st.integers(0, len(content) - 1))
        content[place] = data.draw(st.sampled_from(b'0123456789",:[]{}FB') | st.integers(0, 255))
    (folder / "model.safetensors").write_bytes(content[: data.draw(st.none() | st.integers(0, len(content)))])
    try:
        model = load_pretrained(folder)
    except ValueError as error:
        assert "model.safetensors: " in str(error)  # noqa: PT017
    else:
        assert np.isfinite(model.params.flat).all()


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[]", b"[" * 100_000, b'{"n_embd": ' + b"9" * 5000 + b"}"])
def test_config_that_is_no_config(folder, text):
    (folder / "config.json").write_bytes(text)
    with pytest.raises(ValueError, match=r"größe.config\.json: not (a )?JSON"):
        load_pretrained(folder)


def test_folder_without_config(folder):
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"größe.config\.json: no such file"):
        load_pretrained(folder)


def test_folder_where_config_should_be(folder):
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    with pytest.raises(ValueError, match=r"größe.config\.json: a folder, not a file; Hugging Face's weights have it"):
        load_pretrained(folder)


def test_folder_with_a_pickle_only(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"größe: holds neither model\.safetensors nor .*other formats are not read"):
        load_pretrained(folder)


@pytest.mark.parametrize(
    "shard",
    [
        "../a.safetensors",
        "/etc/a.safetensors",
        "a/b.safetensors",
        "a\\b.safetensors",
        "C:a.safetensors",
        "..",
        "a.bin",
        7,
    ],
)
def test_index_that_leads_elsewhere(shards, shard):
    index = shards / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    change_json(index, weight_map=weight_map | {"transformer.wte.weight": shard})
    with pytest.raises(ValueError, match=r"index\.json: transformer\.wte\.weight lies in .*, not the plain name"):
        load_pretrained(shards)


@pytest.mark.parametrize("name", HOSTILE, ids=["lines", "long", "directions"])
@pytest.mark.parametrize("is_shard", [False, True])
def test_hostile_names_in_an_index_make_one_short_line(shards, name, is_shard):
    index = shards / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    entries = {"spare": f"{name}.safetensors"} if is_shard else {name: next(iter(weight_map.values()))}
    change_json(index, weight_map=weight_map | entries)
    with pytest.raises(ValueError, match="not the plain name" if is_shard else "does not agree with") as info:
        load_pretrained(shards)
    assert_short_line(str(info.value), shards)
    change_json(index, weight_map=weight_map | {name: "a.bin"})
    with pytest.raises(ValueError, match="not the plain name") as info:
        load_pretrained(shards)
    assert_short_line(str(info.value), shards)


@pytest.mark.parametrize("weight_map", [None, [], "model-00001-of-00003.safetensors"])
def test_index_that_makes_no_sense(shards, weight_map):
    change_json(shards / "model.safetensors.index.json", weight_map=weight_map)
    with pytest.raises(ValueError, match=r"index\.json: holds no weight_map"):
        load_pretrained(shards)


def test_missing_shard_is_named(shards):
    (shards / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model-00002-of-00003\.safetensors: no such file, and .* names it"):
        load_pretrained(shards)
    (shards / "model-00002-of-00003.safetensors").mkdir()
    with pytest.raises(ValueError, match=r"model-00002-of-00003\.safetensors: a folder, not a file, and .* names it"):
        load_pretrained(shards)


@pytest.mark.parametrize(
    "change", [lambda t: t.pop("transformer.h.0.ln_1.bias"), lambda t: t.update({"spare.weight": np.ones(2)})]
)
def test_shard_that_does_not_agree_with_the_index(shards, change):
    file = "model-00001-of-00003.safetensors"
    tensors = load_file(shards / file)
    change(tensors)
    save_file(tensors, shards / file)
    with pytest.raises(ValueError, match=rf"{file}: does not agree with .* on (transformer\.h\.0\.ln_1\.bias|spare)"):
        load_pretrained(shards)


# Names


def test_the_path_of_a_run_that_is_not_there_is_no_name(hub, tmp_path):
    (tmp_path / "runs").mkdir()
    with pytest.raises(ValueError, match=r"^runs/007: no such file or folder"):
        load_pretrained("runs/007")
    assert hub.asked == []


@pytest.fixture
def hub(monkeypatch, folder):
    """A stand-in for huggingface_hub that hands out the golden files; its list tells what was asked of it.

    Its set `downloaded` holds the files that it has without a network.
    """
    asked, downloaded = [], set()
    module = ModuleType("huggingface_hub")

    def hf_hub_download(repository, file, local_files_only=False):
        if local_files_only and file not in downloaded:
            raise FileNotFoundError(file)
        if not local_files_only:
            asked.append((repository, file))
        return str(folder / file)

    module.hf_hub_download, module.downloaded = hf_hub_download, downloaded
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.chdir(folder.parent)
    module.asked = asked
    return module


@pytest.mark.parametrize(
    ("name", "repository"),
    [
        ("gpt2", "openai-community/gpt2"),
        ("gpt2-xl", "openai-community/gpt2-xl"),
        ("some-one/her.gpt", "some-one/her.gpt"),
    ],
)
def test_name_downloads_two_files_and_no_pickle(hub, folder, name, repository):
    assert_same(load_pretrained(name), load_pretrained(folder))
    assert hub.asked == [(repository, "config.json"), (repository, "model.safetensors")]


def test_what_is_looked_for_is_told_before_the_hub_is_asked(hub, capsys):
    told, download = [], hub.hf_hub_download

    def listen(repository, file, local_files_only=False):
        told.append(capsys.readouterr().err)
        return download(repository, file, local_files_only)

    hub.hf_hub_download = listen
    load_pretrained("gpt2")
    assert told == ["", "Looking for openai-community/gpt2 on Hugging Face's hub\n", ""]


def test_what_was_downloaded_takes_no_network(hub, folder, capsys):
    hub.downloaded.update(["config.json", "model.safetensors"])
    assert_same(load_pretrained("gpt2"), load_pretrained(folder))
    assert hub.asked == []
    assert capsys.readouterr().err == ""


def test_half_a_download_is_completed(hub, folder):
    hub.downloaded.add("config.json")
    assert_same(load_pretrained("gpt2"), load_pretrained(folder))
    assert [file for _, file in hub.asked] == ["config.json", "model.safetensors"]


def test_folder_goes_before_a_name(hub, folder, capsys):
    folder.rename("gpt2")
    load_pretrained("gpt2")
    assert hub.asked == []
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "name",
    ["gtp2", "", "a/b/c", "../gpt2", "/gpt2", "runs/001/model.safetensors", "b/model.safetensors", "a\\b", "a/b\0"],
)
def test_what_is_no_name_is_not_asked_for(hub, name):
    with pytest.raises(ValueError, match=r"no such file or folder|holds neither"):
        load_pretrained(name)
    assert hub.asked == []


def test_download_without_the_extra(hub, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r"^gpt2: .*pip install 'numpy_gpt\[hub\]'.*path of a folder that holds.*$"):
        load_pretrained("gpt2")


@pytest.mark.parametrize("error", [OSError("no\n\nroute"), RuntimeError("no"), TimeoutError()])
def test_download_that_fails_is_one_line(hub, error):
    def fail(repository, file, local_files_only=False):
        raise FileNotFoundError if local_files_only else error

    hub.hf_hub_download = fail
    with pytest.raises(ValueError, match=r"\Agpt2: .*no download: (no|TimeoutError); .*path of a folder.*\Z"):
        load_pretrained("gpt2")


# Out


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("options", [{}, dict(tie=False, gelu="exact"), dict(scale=False, eps=1e-3), dict(L=1, h=1)])
def test_round_trip_is_bitwise(tmp_path, dtype, options):
    model = random_model(1, dtype, **options)
    save_pretrained(model, tmp_path / "größe" / "out")
    assert_same(load_pretrained(tmp_path / "größe" / "out", dtype), model)


@pytest.mark.parametrize("case", ["square", "shards"])
def test_saves_what_transformers_saved(tmp_path, case):
    save_pretrained(load_pretrained(GOLDEN / case), tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    original = {}
    for path in (GOLDEN / case).glob("model*.safetensors"):
        original |= load_file(path)
    assert saved.keys() == original.keys()
    for name, tensor in saved.items():
        assert tensor.dtype == original[name].dtype
        assert tensor.tobytes() == original[name].tobytes(), name
    with safe_open(tmp_path / "model.safetensors", framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}
    values, original_values = (
        json.loads((path / "config.json").read_text(encoding="utf-8")) for path in (tmp_path, GOLDEN / case)
    )
    ours = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "torch_dtype": "float32"}
    assert values == {name: original_values.get(name) for name in values} | ours


def test_end_of_text_goes_with_the_vocabulary_of_gpt2(tmp_path):
    save_pretrained(random_model(0, V=50257, d=2, h=1, L=1), tmp_path)
    values = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert values["bos_token_id"] == values["eos_token_id"] == 50256


def test_save_from_every_device(tmp_path, xp):
    model = load_pretrained(GOLDEN / "square", xp=xp)
    save_pretrained(model, tmp_path)
    assert_same(load_pretrained(tmp_path), load_pretrained(GOLDEN / "square"))


@pytest.mark.parametrize(
    ("options", "message"), [(dict(norm="post"), "norm='post'"), (dict(causal=False), "causal=False")]
)
def test_model_that_theirs_cannot_be_is_not_written(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        save_pretrained(random_model(0, **options), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weight_that_is_not_finite_is_not_written(tmp_path, folder, value):
    model = random_model(0)
    model.params["block.1.W_o"][3, 5] = value
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    message = (
        rf"model\.safetensors: not written, because transformer\.h\.1\.attn\.c_proj\.weight is {value} at \[3, 5\]$"
    )
    for out in (tmp_path / "out", folder):
        with pytest.raises(FloatingPointError, match=message):
            save_pretrained(model, out)
    assert not (tmp_path / "out").exists()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def fill_the_disk(error):
    """Return a stand-in for safetensors' save_file that finds no room for the second half."""

    def save_file(tensors, path, metadata=None):
        path.write_bytes(b"half of it")
        raise error

    return save_file


NO_SPACE = [OSError(28, "No space left on device"), SafetensorError("I/O error: No space left on device")]


@pytest.mark.parametrize("error", NO_SPACE)
def test_failed_save_keeps_both_older_files(folder, monkeypatch, error):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr("safetensors.numpy.save_file", fill_the_disk(error))
    with pytest.raises(OSError, match="No space left"):
        save_pretrained(random_model(0), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("error", NO_SPACE)
def test_failed_save_names_the_weights_alone_and_leaves_nothing(tmp_path, monkeypatch, error):
    monkeypatch.setattr("safetensors.numpy.save_file", fill_the_disk(error))
    folder = tmp_path / "new" / "out"
    with pytest.raises(OSError) as info:
        save_pretrained(random_model(0), folder)
    reason = error.strerror if isinstance(error, OSError) else str(error)
    assert str(info.value) == f"{folder / 'model.safetensors'}: cannot write it: {reason}"
    assert list(tmp_path.iterdir()) == []


def test_failed_save_of_the_config_names_it(tmp_path, monkeypatch):
    def write_text(path, text, encoding):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", write_text)
    with pytest.raises(OSError) as info:
        save_pretrained(random_model(0), tmp_path / "out")
    assert str(info.value) == f"{tmp_path / 'out' / 'config.json'}: cannot write it: No space left on device"
    assert list(tmp_path.iterdir()) == []


def test_save_over_an_older_model(folder):
    model = random_model(5)
    save_pretrained(model, folder)
    assert_same(load_pretrained(folder), model)
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "expected.safetensors"}


def test_save_where_a_file_stands(folder):
    with pytest.raises(OSError, match=r"config\.json"):
        save_pretrained(random_model(0), folder / "config.json")


# convert


@pytest.mark.parametrize(
    ("target", "written"),
    [
        ("ours.safetensors", "ours.safetensors"),
        ("new/ours.safetensors", "new/ours.safetensors"),
        ("new/run", "new/run/model.safetensors"),
    ],
)
@pytest.mark.parametrize("case", CASES)
def test_convert_to_a_checkpoint(tmp_path, case, target, written):
    path = convert(GOLDEN / case, tmp_path / target)
    assert path == tmp_path / written
    model, metadata = load_checkpoint(path)
    assert_same(model, load_pretrained(GOLDEN / case))
    assert metadata == {}


def test_converted_gpt2_has_its_tokenizer(tmp_path):
    save_pretrained(random_model(0, V=50257, d=2, h=1, L=1), tmp_path / "theirs")
    _, metadata = load_checkpoint(convert(tmp_path / "theirs", tmp_path / "ours"))
    assert metadata == {"tokenizer": {"kind": "gpt2"}}


def test_convert_by_name(hub, folder, tmp_path):
    model, _ = load_checkpoint(convert("gpt2", tmp_path / "ours.safetensors"))
    assert_same(model, load_pretrained(folder))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("source", ["run", "run/model.safetensors"])
def test_convert_ours_to_theirs_and_back_is_bitwise(tmp_path, dtype, source):
    model = random_model(2, dtype, tie=False, gelu="exact")
    (tmp_path / "run").mkdir()
    save_checkpoint(tmp_path / "run" / "model.safetensors", model, step=7)
    theirs = convert(tmp_path / source, tmp_path / "theirs")
    assert theirs == tmp_path / "theirs"
    assert {path.name for path in theirs.iterdir()} == {"config.json", "model.safetensors"}
    back, _ = load_checkpoint(convert(theirs, tmp_path / "back"))
    assert_same(back, model)


def test_convert_a_stopped_run_takes_its_newest_step_that_verifies(tmp_path, capsys):
    old, new = random_model(2), random_model(3)
    (tmp_path / "run").mkdir()
    for step, model in ((2, old), (4, new), (6, new)):
        save_checkpoint(tmp_path / "run" / f"step-{step:06d}.safetensors", model, step=step)
    damaged = tmp_path / "run" / "step-000006.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert_same(load_pretrained(convert(tmp_path / "run", tmp_path / "theirs")), new)
    assert re.fullmatch(r"Passed over: .*step-000006\.safetensors: .*\n", capsys.readouterr().err)


def test_convert_to_theirs_wants_a_folder(tmp_path):
    save_checkpoint(tmp_path / "ours.safetensors", random_model(2))
    with pytest.raises(ValueError, match=r"theirs\.safetensors: Hugging Face's two files want a folder"):
        convert(tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["ours.safetensors"]


@pytest.mark.parametrize(("tokenizer", "told"), [({"kind": "bytes"}, True), ({"kind": "gpt2"}, False), (None, False)])
def test_convert_tells_of_a_tokenizer_that_stays_behind(tmp_path, capsys, tokenizer, told):
    ours = tmp_path / "ours.safetensors"
    save_checkpoint(ours, random_model(2), **({} if tokenizer is None else {"tokenizer": tokenizer}))
    convert(ours, tmp_path / "theirs")
    expected = f"{tmp_path / 'theirs'} holds no tokenizer: keep {ours} for its own\n"
    assert capsys.readouterr().err == (expected if told else "")


def test_convert_overwrites_only_when_told(tmp_path, folder):
    ours = convert(folder, tmp_path / "ours.safetensors")
    before = ours.read_bytes()
    for source, target in ((GOLDEN / "bf16", ours), (ours, folder)):
        with pytest.raises(ValueError, match="is there already"):
            convert(source, target)
    assert ours.read_bytes() == before
    assert_same(load_pretrained(folder), load_checkpoint(ours)[0])
    convert(GOLDEN / "f16", ours, overwrite=True)
    assert_same(load_checkpoint(ours)[0], load_pretrained(GOLDEN / "f16"))


def test_convert_that_fails_leaves_no_folder(folder, tmp_path, monkeypatch):
    ours = convert(folder, tmp_path / "ours.safetensors")
    monkeypatch.setattr("safetensors.numpy.save_file", fill_the_disk(NO_SPACE[0]))
    for source, target in ((folder, "new/ours"), (folder, "new/ours.safetensors"), (ours, "new/theirs")):
        with pytest.raises(OSError, match=r"safetensors: cannot write it: No space left on device$"):
            convert(source, tmp_path / target)
        assert not (tmp_path / "new").exists()


def test_convert_a_damaged_file(folder, tmp_path):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"größe.model\.safetensors: "):
        convert(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_import_is_light():
    heavy = "{'safetensors', 'tiktoken', 'huggingface_hub', 'torch', 'scipy'}"
    code = f"import sys, numpy_gpt.pretrained; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# Live, where the extra `peers` is installed


@pytest.fixture
def transformers(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("torch")
    return pytest.importorskip("transformers")


SIZES = [dict(V=7, d=4, h=1, L=1), dict(V=301, d=48, h=3, L=3), dict(V=130, d=96, h=6, L=2, tie=False, gelu="exact")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("size", SIZES)
def test_transformers_loads_what_we_save(transformers, tmp_path, size, dtype):
    import torch

    model = random_model(3, dtype, T_max=210, **size)
    save_pretrained(model, tmp_path)
    theirs, info = transformers.GPT2LMHeadModel.from_pretrained(
        tmp_path, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values()), info
    assert str(theirs.dtype) == f"torch.{dtype}"
    idx = np.random.default_rng(4).integers(0, model.config.V, (2, 200))
    with torch.no_grad():
        expected = theirs(input_ids=torch.from_numpy(idx)).logits.numpy()
    logits, _ = model.forward(idx)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("size", SIZES)
def test_we_load_what_transformers_saves(transformers, tmp_path, size):
    import torch

    original = random_model(5, "float64", T_max=210, **size)
    original.params["W_pe"] *= 5
    save_pretrained(original, tmp_path / "ours")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "ours", attn_implementation="eager")
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="100KB")
    model = load_pretrained(tmp_path / "theirs", "float64")
    assert_same(model, original)
    prompt = torch.tensor([[1, 2, 3, 4, 5]])
    tokens = theirs.generate(prompt, max_new_tokens=200, do_sample=False)[0, 5:].tolist()
    assert list(generate(model, prompt[0].numpy(), 200, temperature=0)) == tokens


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("stride", [16, 64])
def test_a_text_has_the_loss_that_pytorch_finds(transformers, tmp_path, stride):
    """The protocol of transformers' documentation of perplexity, in float32 on both sides."""
    import torch

    model = random_model(6, V=301, T_max=128, d=48, h=3, L=3)
    save_pretrained(model, tmp_path)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    tokens = np.random.default_rng(7).integers(0, 301, 777)
    nats, n_scored, scored_to = 0.0, 0, 0
    for start in range(0, len(tokens), stride):
        stop = min(start + 128, len(tokens))
        labels = torch.from_numpy(tokens[None, start:stop]).clone()
        labels[:, : scored_to - start] = -100
        n = int((labels[:, 1:] != -100).sum())
        with torch.no_grad():
            nats += n * float(theirs(torch.from_numpy(tokens[None, start:stop]), labels=labels).loss)
        n_scored, scored_to = n_scored + n, stop
        if stop == len(tokens):
            break
    found = evaluate_text(model, tokens, stride)
    assert found.n_scored == n_scored == 776
    assert found.loss == pytest.approx(nats / n_scored, abs=1e-4)
