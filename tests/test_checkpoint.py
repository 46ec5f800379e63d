import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from numpy_gpt import Config, Model
from numpy_gpt.checkpoint import atomic_write, load_checkpoint, save_checkpoint

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
