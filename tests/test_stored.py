import json
import sys
import unicodedata

import numpy as np
import pytest
from safetensors.numpy import save_file

from numpy_gpt import Config
from numpy_gpt.stored import LARGEST_HEADER, check_finite, check_fit_to_save, read_header
from numpy_gpt.tokenizer import CharTokenizer


def write(path, header, body=b""):
    data = json.dumps(header).encode("utf-8")
    path.write_bytes(len(data).to_bytes(8, "little") + data + body)


def test_tensors_are_found_and_then_read(tmp_path):
    path = tmp_path / "größe.safetensors"
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(0.5, np.float16)}
    save_file(tensors, path, {"note": "Größe"})
    found, metadata = read_header(path)
    assert metadata == {"note": "Größe"}
    assert found.keys() == tensors.keys()
    for name, tensor in found.items():
        assert tensor.file == path
        assert tensor.shape == tensors[name].shape
        numbers = tensor.read()
        assert numbers.dtype == tensors[name].dtype
        assert numbers.tobytes() == tensors[name].tobytes()


def test_bf16_is_the_upper_half_of_a_float32(tmp_path):
    path = tmp_path / "half.safetensors"
    values = np.array([1, -2.5, 2.0**-133, 3e38], np.float32)  # a subnormal among them
    bits = (values.view("<u4") >> 16).astype("<u2")
    write(path, {"x": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}, bits.tobytes())
    expected = (bits.astype("<u4") << 16).view("<f4")
    assert read_header(path)[0]["x"].read().tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"bad\.safetensors: "),
        (
            (LARGEST_HEADER + 1).to_bytes(8, "little") + b"{}",
            r"bad\.safetensors: .*its header takes 4,194,305 bytes, more than 4,194,304",
        ),
        ((2).to_bytes(8, "little") + b"[]", r"bad\.safetensors: "),
    ],
)
def test_a_bad_header_is_one_line_that_names_the_file(tmp_path, data, message):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message) as caught:
        read_header(path)
    assert str(caught.value).isprintable()


def test_a_header_may_be_as_long_as_any_honest_one():
    shapes = Config.preset("gpt2-xl").parameter_shapes()
    place = {"dtype": "F32", "shape": [50257, 1600], "data_offsets": [10**11, 10**11]}
    names = [prefix + name for prefix in ("", "adam.m.", "adam.v.") for name in shapes]
    assert 15 * len(json.dumps(dict.fromkeys(names, place))) < LARGEST_HEADER
    characters = "".join(
        character for character in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(character)[0] != "C"
    )
    tokenizer = json.dumps(CharTokenizer(characters).to_dict())
    assert 1.5 * len(json.dumps(tokenizer)) < LARGEST_HEADER


def test_a_header_too_long_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "long.safetensors"
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    write(path, {f"x{n}": empty for n in range(80_000)})
    monkeypatch.setattr("safetensors.safe_open", None)
    with pytest.raises(ValueError, match=r"long\.safetensors: .*its header takes"):
        read_header(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"absent: cannot read it: No such file"):
        read_header(tmp_path / "absent")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_number_that_is_not_finite_is_named(value):
    numbers = np.zeros((2, 3, 4))
    check_finite("W", numbers)
    numbers[1, 2, 0] = numbers[1, 2, 3] = value
    with pytest.raises(ValueError, match=rf"\AW is {value} at \[1, 2, 0\]\Z"):
        check_finite("W", numbers)


def test_what_is_not_fit_to_save_is_named_with_its_file():
    check_fit_to_save("a file", {"W": np.ones(3)})
    with pytest.raises(FloatingPointError, match=r"^a file: not written, because b is inf at \[1\]$"):
        check_fit_to_save("a file", {"W": np.ones(3), "b": np.array([0, np.inf])})
