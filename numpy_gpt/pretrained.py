"""GPT-2's weights as Hugging Face keeps them, in and out: model.safetensors beside a config.json.

Both sides hold a weight as (in, out), y = x @ W + b, and fuse q, k and v in the same order, so
that a conversion renames and never transposes.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath
from types import ModuleType
from typing import Any

import numpy as np

from .backend import to_numpy
from .checkpoint import LARGEST_SIZE
from .config import Config
from .files import atomic_write, naming, one_line
from .model import Model
from .stored import DTYPES, StoredTensor, check_finite, check_fit_to_save, read_header, save_tensors
from .tokenizer import GPT2Tokenizer

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
LONGEST_NAME = 255  # bytes: what file systems allow

# Our names and theirs, which may have `transformer.` before them: all but the head's.
PREFIX = "transformer."
NAMES = {
    "W_te": "wte.weight",
    "W_pe": "wpe.weight",
    "ln_f.gamma": "ln_f.weight",
    "ln_f.beta": "ln_f.bias",
    "W_head": "lm_head.weight",
}
NAMES_IN_BLOCK = {
    "ln_1.gamma": "ln_1.weight",
    "ln_1.beta": "ln_1.bias",
    "W_qkv": "attn.c_attn.weight",
    "b_qkv": "attn.c_attn.bias",
    "W_o": "attn.c_proj.weight",
    "b_o": "attn.c_proj.bias",
    "ln_2.gamma": "ln_2.weight",
    "ln_2.beta": "ln_2.bias",
    "W_1": "mlp.c_fc.weight",
    "b_1": "mlp.c_fc.bias",
    "W_2": "mlp.c_proj.weight",
    "b_2": "mlp.c_proj.bias",
}
MASK_BUFFER = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # the causal mask, which older files keep; no weight

# Our Config's names and those of their config.json, and what a GPT-2 of ours cannot be.
SIZES = {"V": "vocab_size", "T_max": "n_positions", "d": "n_embd", "h": "n_head", "L": "n_layer"}
SWITCHES = {"tie": "tie_word_embeddings", "scale": "scale_attn_weights"}
GELU = {"gelu_new": "tanh", "gelu": "exact"}
UNSUPPORTED = (
    "scale_attn_by_inverse_layer_idx",
    "reorder_and_upcast_attn",
    "add_cross_attention",
    "pruned_heads",
    "quantization_config",
)

HUB_NAMES = {
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "gpt2-xl": "openai-community/gpt2-xl",
    "distilgpt2": "distilbert/distilgpt2",
}
OWNER_AND_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def load_pretrained(path_or_name: Path | str, dtype: str = "float32", xp: ModuleType = np) -> Model:
    """Return the GPT-2 that a Hugging Face folder holds, in dtype and on xp's device.

    path_or_name  a folder with config.json and model.safetensors (or its shards and their index),
                  a .safetensors file with config.json beside it, or, where neither is there, a name
                  to download by: "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2", or
                  "owner/name" (extra `hub`). Nothing but the two files is fetched, and no pickle read.

    F32, F16 and BF16 weights keep their exact values; so do F64's, which need dtype "float64".
    Tensors are read one at a time: memory is the parameters and the largest tensor.

    Raises ValueError, naming the file and the item, for a missing, unknown or misshapen weight, one
    that is not finite, an option of the architecture that this model does not have, a damaged file,
    and a name that cannot be downloaded.
    """
    return load_files(*find_files(path_or_name), dtype, xp)


def load_exactly(path_or_name: Path | str, xp: ModuleType = np) -> Model:
    """Return what `load_pretrained` returns, in float32, or in float64 where a weight is stored as that."""
    config_file, weights = find_files(path_or_name)
    precise = any(tensor.dtype == "F64" for tensor in read_tensors(weights).values())
    return load_files(config_file, weights, "float64" if precise else "float32", xp)


def load_files(config_file: Path, weights: Path, dtype: str, xp: ModuleType = np) -> Model:
    """Return the GPT-2 of a config.json and its weights: one safetensors file, or the index of several."""
    tensors = read_tensors(weights)
    config = read_config(config_file)
    check_tensors(tensors, config, weights)
    model = Model(config, seed=None, dtype=dtype, xp=xp)
    for name in model.params:
        tensor = tensors[hub_name(name)]
        if tensor.dtype == "F64" and model.dtype != np.float64:
            raise ValueError(f"{tensor.file}: {hub_name(name)} is F64, which {model.dtype} rounds; load it as float64")
        numbers = tensor.read()
        check_finite(f"{tensor.file}: {hub_name(name)}", numbers)
        model.params[name] = xp.asarray(numbers)
    return model


def save_pretrained(model: Model, folder: Path | str) -> None:
    """Write model to folder as config.json and model.safetensors, which transformers loads as a GPT-2.

    Both are written whole before either replaces an older one.

    Raises ValueError for a model that Hugging Face's GPT-2 cannot be (norm="post", causal=False).
    Raises OSError where a file cannot be written; older files are then untouched.
    Raises FloatingPointError, naming the weight, where one is inf or nan; nothing is then written.
    """
    values = config_to_hub(model.config, str(model.dtype))
    tensors = {saved_name(name): to_numpy(parameter) for name, parameter in model.params.items()}
    folder = Path(folder)
    check_fit_to_save(folder / WEIGHTS, tensors)
    with filling(folder):
        write_both(folder, values, tensors)


# Names


def hub_name(name: str) -> str:
    """Return Hugging Face's name of our parameter, without the prefix."""
    if name in NAMES:
        return NAMES[name]
    _, number, short_name = name.split(".", 2)
    return f"h.{number}.{NAMES_IN_BLOCK[short_name]}"


def saved_name(name: str) -> str:
    """Return Hugging Face's name of our parameter, as its GPT-2 with a head saves it."""
    return hub_name(name) if name == "W_head" else PREFIX + hub_name(name)


def shown(name: object) -> str:
    """Return what a file calls something, for a message: short and printable, whatever it holds."""
    return one_line(name, 80)


def listed(names: Collection[str]) -> str:
    """Return the first few names for a message, and how many more there are."""
    first = ", ".join(map(shown, sorted(names)[:5]))
    return first if len(names) <= 5 else f"{first} and {len(names) - 5} more"


# Configs


def read_config(path: Path) -> Config:
    """Return the Config that a config.json describes. Raises ValueError, naming the file and the option."""
    values = read_json(path)
    with naming(path):
        return config_from_hub(values)


def config_from_hub(values: dict[str, Any]) -> Config:
    """Return the Config of Hugging Face's values; what they leave out is as in their GPT-2."""
    if values.get("model_type") != "gpt2":
        raise ValueError(f"model_type must be 'gpt2', got {values.get('model_type')!r:.80}")
    for option in UNSUPPORTED:
        if values.get(option):
            raise ValueError(f"{option} is {values[option]!r:.80}, which this model does not have")
    sizes: dict[str, Any] = {ours: values.get(theirs) for ours, theirs in SIZES.items()}
    for ours, size in sizes.items():
        if type(size) is not int or not 1 <= size <= LARGEST_SIZE:
            raise ValueError(f"{SIZES[ours]} must be a whole number from 1 to {LARGEST_SIZE:,}, got {size!r:.80}")
    switches: dict[str, Any] = {ours: values.get(theirs, True) for ours, theirs in SWITCHES.items()}
    for ours, switch in switches.items():
        if not isinstance(switch, bool):
            raise ValueError(f"{SWITCHES[ours]} must be true or false, got {switch!r:.80}")
    activation = values.get("activation_function", "gelu_new")
    if activation not in list(GELU):
        raise ValueError(f"activation_function must be one of {', '.join(GELU)}, got {activation!r:.80}")
    eps = values.get("layer_norm_epsilon", 1e-5)
    if type(eps) not in (int, float) or not 0 < eps <= sys.float_info.max:
        raise ValueError(f"layer_norm_epsilon must be a finite number above 0, got {eps!r:.80}")
    if values.get("n_inner") not in (None, 4 * sizes["d"]):
        raise ValueError(f"n_inner must be 4 n_embd = {4 * sizes['d']} or null, got {values['n_inner']!r:.80}")
    return Config(**sizes, **switches, gelu=GELU[activation], eps=eps)


def config_to_hub(config: Config, dtype: str) -> dict[str, Any]:
    """Return what `config_from_hub` makes config of, and what else transformers wants to know."""
    if config.norm != "pre" or not config.causal:
        option = "norm='post'" if config.norm != "pre" else "causal=False"
        raise ValueError(f"Hugging Face's GPT-2 cannot have {option}; save_checkpoint keeps such a model")
    end_of_text = GPT2Tokenizer.start_id if config.V == GPT2Tokenizer.V else None
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        **{theirs: getattr(config, ours) for ours, theirs in (SIZES | SWITCHES).items()},
        "n_inner": None,
        "activation_function": next(theirs for theirs, ours in GELU.items() if ours == config.gelu),
        "layer_norm_epsilon": float(config.eps),
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "torch_dtype": dtype,
    }


# Files


def find_files(path_or_name: Path | str) -> tuple[Path, Path]:
    """Return the paths of config.json and of the weights, downloaded where they are a name's.

    The weights are a safetensors file, or the index of several.
    """
    path = Path(path_or_name)
    if path.is_dir():
        found = [path / name for name in (WEIGHTS, INDEX) if (path / name).is_file()]
        if not found:
            raise ValueError(f"{path}: holds neither {WEIGHTS} nor {INDEX}; weights in other formats are not read")
        weights = found[0]
    elif path.is_file():
        weights = path
    else:
        return download(str(path_or_name))
    config_file = weights.with_name(CONFIG)
    if not config_file.is_file():
        raise ValueError(f"{config_file}: {absence(config_file)}; Hugging Face's weights have it beside them")
    return config_file, weights


def absence(path: Path) -> str:
    """Return what there is in place of a file at path."""
    return "a folder, not a file" if path.is_dir() else "no such file"


def download(name: str) -> tuple[Path, Path]:
    """Return config.json and model.safetensors of a model on Hugging Face's hub, in its library's own cache.

    What is looked for is told on stderr: without a connection the library may try for half a minute.

    Raises ValueError where name cannot be one, huggingface_hub is missing, or the download fails.
    """
    repository = HUB_NAMES.get(name, name)
    is_path = name.endswith(".safetensors") or ("/" in name and Path(name).parent.is_dir())  # runs/007, say
    if not OWNER_AND_NAME.fullmatch(repository) or is_path:
        raise ValueError(f"{name}: no such file or folder, nor one of {', '.join(HUB_NAMES)} or owner/name")
    by_hand = f"or give the path of a folder that holds {WEIGHTS} and {CONFIG}"
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise ValueError(
            f"{name}: no such folder here, and to download it takes pip install 'numpy_gpt[hub]'; do that, {by_hand}"
        ) from error
    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of each of its attempts; our one line is enough
    try:
        try:  # an earlier download, which takes no network
            paths = [hf_hub_download(repository, file, local_files_only=True) for file in (CONFIG, WEIGHTS)]
        except FileNotFoundError:
            print(f"Looking for {repository} on Hugging Face's hub", file=sys.stderr)
            paths = [hf_hub_download(repository, file) for file in (CONFIG, WEIGHTS)]
    except Exception as error:  # its versions raise those of several HTTP libraries; all mean: not downloaded
        cause = error.__cause__ or error
        reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        raise ValueError(f"{name}: no such folder here, and no download: {reason}; try again, {by_hand}") from error
    finally:
        log.setLevel(level)
    config_file, weights = map(Path, paths)
    return config_file, weights


@contextmanager
def filling(folder: Path) -> Iterator[None]:
    """Make folder, and those it lies in, for the body to fill; take away again what was made and is still empty."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for path in made:  # the innermost comes first
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()


def write_both(folder: Path, values: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Write config.json and model.safetensors, whole before either replaces an older one.

    Raises OSError, naming the one that cannot be written.
    """
    with atomic_write(folder / CONFIG) as config_file:
        config_file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        with atomic_write(folder / WEIGHTS) as weights_file:
            save_tensors(weights_file, tensors, {"format": "pt"})  # older transformers refuse a file without it


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object that a file holds. Raises ValueError, naming the file."""
    try:
        if path.stat().st_size > 10**8:
            raise ValueError("more than 100 MB")
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}: not a JSON object")
    return values


# Tensors


def read_shards(index: Path) -> dict[str, StoredTensor]:
    """Return the tensors of all files that an index names. Raises ValueError where they do not agree with it."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ValueError(f"{index}: holds no weight_map")
    names_of: dict[str, set[str]] = {}
    for name, shard in weight_map.items():
        if not is_plain_name(shard):
            raise ValueError(f"{index}: {shown(name)} lies in {shard!r:.80}, not the plain name of a .safetensors file")
        names_of.setdefault(shard, set()).add(name)
    tensors: dict[str, StoredTensor] = {}
    for shard, names in names_of.items():
        path = index.with_name(shard)
        if not path.is_file():
            raise ValueError(f"{path}: {absence(path)}, and {index.name} names it")
        held, _ = read_header(path)
        if held.keys() != names:
            raise ValueError(f"{path}: does not agree with {index.name} on {listed(held.keys() ^ names)}")
        tensors |= held
    return tensors


def is_plain_name(shard: Any) -> bool:
    """Return whether shard, which an index holds, can be the name of a .safetensors file beside it, on any system."""
    if not isinstance(shard, str) or not shard.isprintable() or len(shard.encode("utf-8")) > LONGEST_NAME:
        return False
    return PureWindowsPath(shard).name == shard and shard.endswith(".safetensors")


def read_tensors(weights: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a file, or of an index's files, by their names without prefix; no mask buffers."""
    found = read_shards(weights) if weights.name == INDEX else read_header(weights)[0]
    tensors: dict[str, StoredTensor] = {}
    for full_name, tensor in found.items():
        name = full_name.removeprefix(PREFIX)
        if name in tensors:
            raise ValueError(f"{tensor.file}: {shown(name)} comes twice, with and without {PREFIX!r} before it")
        if not MASK_BUFFER.fullmatch(name):
            tensors[name] = tensor
    return tensors


def check_tensors(tensors: dict[str, StoredTensor], config: Config, weights: Path) -> None:
    """Raise ValueError unless the tensors are those of config's model, in shapes and dtypes that it can read."""
    n_blocks = len({name.split(".")[1] for name in tensors if name.startswith("h.")})
    if n_blocks != config.L:  # also keeps a false n_layer from making names without end
        raise ValueError(f"{weights}: holds weights of {n_blocks} blocks; {CONFIG} says n_layer = {config.L}")
    shapes = {hub_name(name): shape for name, shape in config.parameter_shapes().items()}
    head = NAMES["W_head"]
    if config.tie and head in tensors:
        shapes[head] = (config.V, config.d)  # a copy of the embedding
    for names, what in ((shapes.keys() - tensors.keys(), "missing"), (tensors.keys() - shapes.keys(), "unknown")):
        if names:
            raise ValueError(f"{weights}: {what} weight: {listed(names)}")
    for name, tensor in tensors.items():
        if tensor.shape != shapes[name]:
            raise ValueError(f"{tensor.file}: {name} has shape {shown(tensor.shape)}; {CONFIG} makes it {shapes[name]}")
        if tensor.dtype not in DTYPES:
            raise ValueError(f"{tensor.file}: {name} is {tensor.dtype}, not one of {', '.join(DTYPES)}")
    if config.tie and head in tensors and not np.array_equal(tensors[head].read(), tensors[NAMES["W_te"]].read()):
        raise ValueError(f"{weights}: {head} is not wte.weight, but {CONFIG} ties them")
