import json
import os
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from numpy_gpt import AdamW, Config, Model, __version__
from numpy_gpt.checkpoint import LARGEST_SIZE, load_checkpoint, read_checkpoint, read_metadata, save_checkpoint
from numpy_gpt.files import atomic_write
from numpy_gpt.stored import LARGEST_HEADER

CONFIG = Config(V=11, T_max=6, d=8, h=2, L=2)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, Model(CONFIG, seed=3), step=7, note="Größe")
    return path


def rewrite(path, change_tensors=lambda tensors: None, **changed_metadata):
    """Write the checkpoint at path again with some tensors or metadata changed."""
    header = {"format": 1, "config": CONFIG.to_dict()} | changed_metadata
    tensors = load_file(path)
    change_tensors(tensors)
    save_file(tensors, path, {"numpy_gpt": json.dumps(header)})


def test_metadata_leaves_the_checkpoints_own_names_alone(tmp_path):
    with pytest.raises(ValueError, match="metadata cannot be called config, format: the checkpoint's own"):
        save_checkpoint(tmp_path / "model.safetensors", Model(CONFIG), format=7, config="mine", step=3)
    assert not any(tmp_path.iterdir())


def test_what_could_not_be_read_back_is_not_written(tmp_path):
    path, model = tmp_path / "model.safetensors", Model(CONFIG)
    other = AdamW(Model(Config(V=11, T_max=6, d=8, h=2, L=1)).params)
    large = Model(Config(V=LARGEST_SIZE + 1, T_max=1, d=1, h=1, L=1), seed=None)
    with pytest.raises(ValueError, match=r"model\.safetensors: .*its header takes .* bytes, more than 4,194,304"):
        save_checkpoint(path, model, note="x" * LARGEST_HEADER)
    with pytest.raises(ValueError, match=r"the optimiser's parameters, .*16 arrays.*, are not the model's, .*28"):
        save_checkpoint(path, model, other)
    with pytest.raises(ValueError, match=r"Config\.V is 1048577, above 1048576"):
        save_checkpoint(path, large)
    assert not any(tmp_path.iterdir())


def test_keys_come_back_as_json_has_them(tmp_path):
    save_checkpoint(tmp_path / "model.safetensors", Model(CONFIG), best={2: 0.5, 10: 0.25})
    assert load_checkpoint(tmp_path / "model.safetensors")[1] == {"best": {"2": 0.5, "10": 0.25}}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("tie", [True, False])
def test_round_trip_is_bitwise(tmp_path, dtype, tie):
    config = Config(V=11, T_max=6, d=8, h=2, L=2, tie=tie, gelu="exact", norm="post")
    model = Model(config, seed=1, dtype=dtype)
    save_checkpoint(tmp_path / "größe.safetensors", model, step=7)
    loaded, metadata = load_checkpoint(tmp_path / "größe.safetensors")
    assert loaded.config == config
    assert loaded.dtype == dtype
    assert loaded.params.flat.tobytes() == model.params.flat.tobytes()
    assert metadata == {"step": 7}


def test_metadata_comes_back(saved):
    assert load_checkpoint(saved)[1] == {"step": 7, "note": "Größe"}


def test_save_leaves_no_temporary_file(saved):
    assert [path.name for path in saved.parent.iterdir()] == ["model.safetensors"]


def test_file_has_the_mode_of_any_new_file(saved):
    (saved.parent / "plain").touch()
    assert saved.stat().st_mode == (saved.parent / "plain").stat().st_mode


def test_failed_write_keeps_the_old_file(saved):
    before = saved.read_bytes()

    def write_half():
        with atomic_write(saved) as temporary:
            temporary.write_bytes(b"half of it")
            raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        write_half()
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["model.safetensors"]


def test_save_into_a_missing_folder_names_it(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        save_checkpoint(tmp_path / "nowhere" / "model.safetensors", Model(CONFIG))


def test_missing_file(tmp_path):
    with pytest.raises(ValueError, match=r"absent\.safetensors: no such checkpoint"):
        load_checkpoint(tmp_path / "absent.safetensors")


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_truncated_file(saved, keep):
    saved.write_bytes(saved.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"model\.safetensors: "):
        load_checkpoint(saved)


def test_random_bytes(saved):
    saved.write_bytes(np.random.default_rng(0).bytes(5000))
    with pytest.raises(ValueError, match=r"model\.safetensors: "):
        load_checkpoint(saved)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"numpy_gpt": '{"format": 99}'}])
def test_foreign_safetensors(saved, metadata):
    save_file(load_file(saved), saved, metadata)
    with pytest.raises(ValueError, match="not a checkpoint of numpy_gpt"):
        load_checkpoint(saved)


@pytest.mark.parametrize("header", ["{", "[]", "7", '{"format": 1, "config": []}', '{"format": 1}'])
def test_metadata_that_makes_no_sense(saved, header):
    save_file(load_file(saved), saved, {"numpy_gpt": header})
    with pytest.raises(ValueError, match=r"model\.safetensors: "):
        load_checkpoint(saved)


def test_config_that_makes_no_model(saved):
    rewrite(saved, config=CONFIG.to_dict() | {"h": 3})
    with pytest.raises(ValueError, match="nearest h"):
        load_checkpoint(saved)


@pytest.mark.parametrize("size", ["V", "T_max", "d", "h", "L"])
@pytest.mark.parametrize("value", [10**15, 2**19 - 1])
def test_config_made_to_hurt_is_refused_at_once(saved, size, value):
    rewrite(saved, config=CONFIG.to_dict() | {size: value})
    with pytest.raises(ValueError, match=r"model\.safetensors: "):
        load_checkpoint(saved)


def test_missing_parameter_is_named(saved):
    rewrite(saved, lambda tensors: tensors.pop("block.1.W_o"))
    with pytest.raises(ValueError, match=r"missing parameter: block\.1\.W_o"):
        load_checkpoint(saved)


def test_unknown_parameter_is_named(saved):
    rewrite(saved, lambda tensors: tensors.update(W_extra=np.zeros(3, np.float32)))
    with pytest.raises(ValueError, match="unknown parameter: W_extra"):
        load_checkpoint(saved)


def test_wrong_shape_is_named(saved):
    rewrite(saved, lambda tensors: tensors.update(W_pe=np.zeros((6, 9), np.float32)))
    with pytest.raises(ValueError, match=r"W_pe has shape \(6, 9\), its config says \(6, 8\)"):
        load_checkpoint(saved)


def test_wrong_dtype_is_named(saved):
    rewrite(saved, lambda tensors: tensors.update(W_pe=np.zeros((6, 8), np.int32)))
    with pytest.raises(ValueError, match="F32, I32"):
        load_checkpoint(saved)


# Moments, checksum, version


@pytest.fixture
def trained(tmp_path):
    """A checkpoint to train on from, and the optimiser that was saved in it."""
    model = Model(CONFIG, seed=3)
    optimiser = AdamW(model.params)
    for seed in range(3):
        grads = model.params.zeros_like()
        grads.flat[:] = np.random.default_rng(seed).standard_normal(grads.flat.size)
        optimiser.update(grads)
    path = tmp_path / "step.safetensors"
    save_checkpoint(path, model, optimiser, step=3)
    return path, optimiser


@pytest.mark.parametrize("device", ["numpy", "strict_device"])
def test_moments_round_trip_bitwise(trained, device, request):
    path, optimiser = trained
    xp = np if device == "numpy" else request.getfixturevalue("strict")
    model, (m, v), metadata = read_checkpoint(path, xp, with_moments=True)
    for found, expected in ((model.params, optimiser.params), (m, optimiser.m), (v, optimiser.v)):
        for name in expected:
            host = found[name] if xp is np else xp.asnumpy(found[name])
            assert host.tobytes() == expected[name].tobytes()
    assert metadata == {"step": 3}


def test_the_model_alone_from_a_file_with_moments(trained):
    path, optimiser = trained
    model, metadata = load_checkpoint(path)
    assert model.params.flat.tobytes() == optimiser.params.flat.tobytes()
    assert metadata == {"step": 3}
    assert read_checkpoint(path).moments is None


def test_moments_asked_for_and_not_there(saved):
    with pytest.raises(ValueError, match=r"model\.safetensors: holds parameters alone"):
        read_checkpoint(saved, with_moments=True)


def test_moments_are_all_there_or_none(trained):
    path, _ = trained
    tensors = load_file(path)
    del tensors["adam.v.block.0.b_1"]
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))["__metadata__"]
    save_file(tensors, path, header)
    with pytest.raises(ValueError, match=r"missing parameter: adam\.v\.block\.0\.b_1"):
        load_checkpoint(path)


def test_a_file_of_the_first_format_has_no_checksum_and_still_loads(saved):
    expected, _ = load_checkpoint(saved)
    rewrite(saved, step=7)
    model, metadata = load_checkpoint(saved)
    assert model.params.flat.tobytes() == expected.params.flat.tobytes()
    assert metadata == {"step": 7}


def test_the_file_says_which_version_wrote_it(saved):
    assert read_metadata(saved)["version"] == __version__
    assert set(read_metadata(saved)) == {"format", "version", "config", "sha256", "step", "note"}


def test_the_same_save_writes_the_same_bytes(saved, tmp_path):
    save_checkpoint(tmp_path / "again.safetensors", Model(CONFIG, seed=3), step=7, note="Größe")
    assert (tmp_path / "again.safetensors").read_bytes() == saved.read_bytes()


@pytest.mark.parametrize("with_moments", [False, True])
def test_every_byte_counts(trained, with_moments):
    """Each tensor in turn with the lowest bit of its last number turned."""
    path, _ = trained
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    for entry in json.loads(data[8:start]).values():
        if "data_offsets" in entry:
            place = start + entry["data_offsets"][1] - 4
            path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            with pytest.raises(ValueError, match=r"step\.safetensors: damaged"):
                read_checkpoint(path, with_moments=with_moments)


@pytest.mark.parametrize("changed", [("step", 8), ("note", "Grösse"), ("format", 1), ("sha256", "0" * 64)])
def test_changed_metadata_is_damage(saved, changed):
    header = read_metadata(saved) | dict([changed])
    save_file(load_file(saved), saved, {"numpy_gpt": json.dumps(header)})
    with pytest.raises(ValueError, match=r"model\.safetensors: damaged"):
        load_checkpoint(saved)


def test_a_checksum_that_was_taken_out(saved):
    header = read_metadata(saved)
    del header["sha256"]
    save_file(load_file(saved), saved, {"numpy_gpt": json.dumps(header)})
    with pytest.raises(ValueError, match="no checksum"):
        load_checkpoint(saved)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_neither_saved_nor_loaded(saved, value):
    before = saved.read_bytes()
    model, _ = load_checkpoint(saved)
    model.params["block.1.W_o"][2, 3] = value
    with pytest.raises(FloatingPointError, match=rf"model\.safetensors: .*block\.1\.W_o is {value} at \[2, 3\]"):
        save_checkpoint(saved, model)
    assert saved.read_bytes() == before
    rewrite(saved, lambda tensors: tensors.update({"block.1.W_o": model.params["block.1.W_o"]}))
    with pytest.raises(ValueError, match=rf"model\.safetensors: block\.1\.W_o is {value} at \[2, 3\]"):
        load_checkpoint(saved)


def test_a_negative_mean_of_squares(trained):
    path, optimiser = trained
    optimiser.v["block.0.W_1"][1, 2] *= -1
    save_checkpoint(path, Model(CONFIG, seed=3), optimiser)
    with pytest.raises(ValueError, match=r"step\.safetensors: .*adam\.v, is negative"):
        read_checkpoint(path, with_moments=True)


# Files made to hurt


def assemble(header, body=b"", length=None):
    """Return the bytes of a safetensors file with this header, true or not."""
    data = header if isinstance(header, bytes) else json.dumps(header).encode("utf-8")
    return (len(data) if length is None else length).to_bytes(8, "little") + data + body


def ours(**metadata):
    return {"numpy_gpt": json.dumps({"format": 1, "config": CONFIG.to_dict()} | metadata)}


F32 = {"dtype": "F32", "shape": [4]}
HOSTILE = {
    "empty": b"",
    "zeros": bytes(1000),
    "a header of 10 GB": assemble({}, length=10**10),
    "a header of 2^64 - 1 bytes": assemble({}, length=2**64 - 1),
    "a header longer than the file": assemble({}, length=100),
    "a header as long as is read, and empty": assemble(b"{" + b" " * (LARGEST_HEADER - 2) + b"}"),
    "no object": assemble(b"[]"),
    "not UTF-8": assemble(b'{"\xff": 1}'),
    "nested deep": assemble(b"[" * 10**6),
    "metadata nested deep": assemble({"__metadata__": {"numpy_gpt": "[" * 10**6}}),
    "metadata that are no text": assemble({"__metadata__": {"numpy_gpt": 7}}),
    "a number of 5,000 digits": assemble({"__metadata__": {"numpy_gpt": '{"format": ' + "9" * 5000 + "}"}}),
    "a tensor of 10 GB": assemble({"W": {"dtype": "F32", "shape": [2500000000], "data_offsets": [0, 10**10]}}),
    "offsets past the end": assemble({"W": {**F32, "data_offsets": [0, 16]}}, bytes(8)),
    "offsets that run back": assemble({"W": {**F32, "data_offsets": [16, 0]}}, bytes(16)),
    "offsets below zero": assemble({"W": {**F32, "data_offsets": [-16, 0]}}, bytes(16)),
    "offsets that overlap": assemble(
        {"V": {**F32, "data_offsets": [0, 16]}, "W": {**F32, "data_offsets": [8, 24]}}, bytes(24)
    ),
    "one place for two": assemble(
        {"V": {**F32, "data_offsets": [0, 16]}, "W": {**F32, "data_offsets": [0, 16]}}, bytes(16)
    ),
    "a hole": assemble({"V": {**F32, "data_offsets": [0, 16]}, "W": {**F32, "data_offsets": [20, 36]}}, bytes(36)),
    "a shape that overflows": assemble({"W": {"dtype": "F32", "shape": [2**33, 2**33], "data_offsets": [0, 0]}}),
    "names with paths": assemble(
        {"__metadata__": ours(), "../../etc/passwd": {**F32, "data_offsets": [0, 16]}}, bytes(16)
    ),
    "names that write to the terminal": assemble(
        {"__metadata__": ours(), "\x1b[2J\n\n": {**F32, "data_offsets": [0, 16]}}, bytes(16)
    ),
    "a long name": assemble({"__metadata__": ours(), "W" * 10**6: {**F32, "data_offsets": [0, 16]}}, bytes(16)),
    "no parameters": assemble({"__metadata__": ours()}),
    "an eps beyond floats": assemble({"__metadata__": ours(config=CONFIG.to_dict() | {"eps": 10**400})}),
    "a config that is infinite": assemble({"__metadata__": ours(config=CONFIG.to_dict() | {"V": float("inf")})}),
    "many blocks": assemble({"__metadata__": ours(config=CONFIG.to_dict() | {"L": 2**20})}),
    "a pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    "a zip": b"PK\x03\x04" + bytes(100),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_made_to_hurt_is_one_clear_line(tmp_path, name):
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(ValueError, match=r"hostile\.safetensors: ") as caught:
        load_checkpoint(path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < len(str(path)) + 310


LIMITED = """
import resource, sys
from numpy_gpt.checkpoint import load_checkpoint
(size,) = (int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (size + 2**29, size + 2**29))
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
for path in sys.argv[1:]:
    try:
        load_checkpoint(path)
    except ValueError as error:
        print(str(error))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory and time")
def test_files_made_to_hurt_cost_little_memory_and_time(tmp_path):
    paths = [tmp_path / f"{number}.safetensors" for number in range(len(HOSTILE))]
    for path, data in zip(paths, HOSTILE.values()):
        path.write_bytes(data)
    command = [sys.executable, "-c", LIMITED, *paths]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60)
    assert result.stderr == ""
    assert len(result.stdout.splitlines()) == len(HOSTILE)


@pytest.mark.parametrize("kind", ["folder", "device"])
def test_what_is_no_file(tmp_path, kind):
    path = tmp_path if kind == "folder" else os.devnull
    with pytest.raises(ValueError, match="is a folder" if kind == "folder" else "no such checkpoint"):
        load_checkpoint(path)


def mutate(data, rng):
    """Return data damaged in one or a few of the ways that disks, copies and enemies know."""
    data = bytearray(data)
    start = 8 + int.from_bytes(data[:8], "little")
    for _ in range(rng.integers(1, 4)):
        first = int(rng.integers(rng.choice([9, start, len(data)]) + 1)) % max(len(data), 1)
        last = first + int(rng.integers(1, rng.choice([2, 9, 600])))
        match rng.integers(9):
            case 0 if data:
                data[first] ^= 1 << rng.integers(8)
            case 1:
                data[first:last] = rng.bytes(last - first)
            case 2:
                del data[first:]
            case 3:
                del data[first:last]
            case 4:
                data[first:first] = data[first:last]
            case 5:
                data[first:last] = bytes(last - first)
            case 6:
                other = int(rng.integers(len(data) + 1))
                data[first:last], data[other : other + last - first] = (
                    data[other : other + last - first],
                    data[first:last],
                )
            case 7:  # a digit of the header
                digits = [place for place in range(8, min(start, len(data))) if chr(data[place]).isdecimal()]
                if digits:
                    data[rng.choice(digits)] = ord("0") + rng.integers(10)
            case 8:
                data[:8] = rng.bytes(rng.integers(1, 9)).ljust(8, b"\0")
    return bytes(data)


def test_mutated_files_are_refused_or_harmless(trained):
    """Some hundreds here; NUMPY_GPT_FUZZ=10000 python -m pytest tests/test_checkpoint.py -k mutated."""
    path, optimiser = trained
    original = path.read_bytes()
    rng = np.random.default_rng(0)
    n = int(os.environ.get("NUMPY_GPT_FUZZ", "300"))
    refusals = []
    for _ in range(n):
        path.write_bytes(mutate(original, rng))
        try:
            model, (m, v), metadata = read_checkpoint(path, with_moments=True)
        except ValueError as error:
            refusals.append(str(error))
            continue
        # A space in the header, a digit for itself: whatever is accepted is what was written.
        assert model.config == CONFIG
        assert metadata == {"step": 3}
        for found, expected in ((model.params, optimiser.params), (m, optimiser.m), (v, optimiser.v)):
            assert found.flat.tobytes() == expected.flat.tobytes()
    assert len(refusals) > 0.9 * n
    for refusal in refusals:
        assert refusal.startswith(f"{path}: ")
        assert refusal.isprintable()
