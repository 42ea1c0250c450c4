"""A model in Hugging Face's Llama format, and back, with equal logits.

Nouns: a *state* (our names → tensors), a *Hugging Face state* (their names → tensors) and
their *config* (config.json). The maps rename; no value moves, because both sides pair the halves
of a head in rotary positions. Both ways are strict: a missing, unknown or wrongly shaped tensor
is an error, and so is a config that asks for what `spec.model.Llama` cannot compute (biases, scaled
rotary positions, another activation, heads of another width), instead of other logits.
"""

import json
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from elinvar.errors import InvalidInput, StorageFailed
from elinvar.spec.model import Llama, parameter_shapes

_OUTSIDE = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INSIDE = {
    "attention_norm": "input_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.o": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}
_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
}
# Exact in fp32, which our parameters are.
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_WEIGHTS = "model.safetensors"


def hugging_face_name(name: str) -> str:
    """Their name of our parameter `name`, such as `layers.0.attention.q.weight`."""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    _, index, inner = name.split(".", 2)
    return f"model.layers.{index}.{_INSIDE[inner.removesuffix('.weight')]}.weight"


def to_hugging_face(
    state: Mapping[str, Tensor], model: Llama, *, trained_tokens: int, end_of_document: int | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(Hugging Face state, config) of `state`, whose tensors are shared, not copied.

    `trained_tokens` is the sequence length that the model was trained on (their
    `max_position_embeddings`), `end_of_document` the token that ends a text. Dropout has no place
    in their config and is left out: it acts in training only. Raises InvalidInput where names or
    shapes of `state` are not those of `model`.
    """
    shapes = parameter_shapes(model)
    _check_names(state, shapes, "the state")
    _check_shapes(state, shapes, "the state")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **{theirs: getattr(model, ours) for ours, theirs in _SIZES.items()},
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_eps,
        # Transformers before 5 reads rope_theta, from 5 on rope_parameters.
        "rope_theta": model.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "initializer_range": model.init_std,
        "tie_word_embeddings": model.tie_embeddings,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "max_position_embeddings": trained_tokens,
        # Written out: an absent key would mean their defaults, ids 1 and 2.
        "bos_token_id": None,
        "eos_token_id": end_of_document,
        "pad_token_id": None,
        "torch_dtype": "float32",
    }
    return {hugging_face_name(name): state[name] for name in shapes}, config


def from_hugging_face(
    hf_state: Mapping[str, Tensor], config: Mapping[str, Any]
) -> tuple[dict[str, Tensor], Llama]:
    """(state, model) of a Hugging Face Llama; tensors become fp32, exactly.

    Accepted and dropped, since they repeat what is known: an output matrix equal to a tied
    embedding, and the `rotary_emb.inv_freq` constants of old files. Raises InvalidInput for anything else
    that is missing, unknown, of another shape or dtype, and for a config that `Llama` cannot compute.
    """
    model = _model_of(config)
    shapes = parameter_shapes(model)
    theirs = {hugging_face_name(name): shape for name, shape in shapes.items()}
    given = {name: value for name, value in hf_state.items() if not name.endswith(".rotary_emb.inv_freq")}
    if model.tie_embeddings and "lm_head.weight" in given:
        output, embedding = given.pop("lm_head.weight"), given.get("model.embed_tokens.weight")
        if embedding is not None and not torch.equal(output, embedding):
            raise InvalidInput(
                "lm_head.weight differs from model.embed_tokens.weight, but the config says tie_word_embeddings = true"
            )
    _check_names(given, theirs, "the Hugging Face state")
    _check_shapes(given, theirs, "the Hugging Face state")
    for name, value in given.items():
        if value.dtype not in _DTYPES:
            allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
            raise InvalidInput(
                f"{name} has dtype {value.dtype}; weights that fp32 holds exactly are {allowed}"
            )
    return {name: given[hugging_face_name(name)].float() for name in shapes}, model


def save_hugging_face(
    folder: Path,
    state: Mapping[str, Tensor],
    model: Llama,
    *,
    trained_tokens: int,
    end_of_document: int | None = None,
) -> None:
    """Write `folder` with config.json and model.safetensors, readable by `LlamaForCausalLM.from_pretrained`.

    Raises InvalidInput where the folder exists (nothing is overwritten), StorageFailed where the disk refuses.
    """
    hf_state, config = to_hugging_face(
        state, model, trained_tokens=trained_tokens, end_of_document=end_of_document
    )
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise InvalidInput(f"{folder} exists already; name a folder that does not") from None
    except OSError as error:
        raise StorageFailed(f"cannot create {folder}: {error.strerror}") from error
    try:
        config_path = folder / "config.json"
        config_path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        contiguous = {name: value.detach().contiguous() for name, value in hf_state.items()}
        save_file(contiguous, folder / _WEIGHTS, metadata={"format": "pt"})
        # safetensors makes its file readable by the owner alone; give it the mode that any new file has here.
        (folder / _WEIGHTS).chmod(config_path.stat().st_mode)
    except (OSError, SafetensorError) as error:
        raise StorageFailed(f"cannot write the model to {folder}: {error}") from error


def load_hugging_face(folder: Path) -> tuple[dict[str, Tensor], Llama]:
    """(state, model) of a folder with config.json and model.safetensors, whole or in parts with an index.

    Raises InvalidInput for a missing or broken file, and as `from_hugging_face` does.
    """
    config = _read_json(folder / "config.json")
    index_path = folder / f"{_WEIGHTS}.index.json"
    if index_path.exists():
        weight_map = _read_json(index_path).get("weight_map")
        if not isinstance(weight_map, dict):
            raise InvalidInput(f"{index_path} has no table weight_map from tensor names to files")
        files = sorted({str(name) for name in weight_map.values()})
    else:
        files = [_WEIGHTS]
    hf_state: dict[str, Tensor] = {}
    for name in files:
        try:
            hf_state |= load_file(folder / name)
        except (OSError, SafetensorError) as error:
            raise InvalidInput(f"cannot read {folder / name}: {error}") from error
    return from_hugging_face(hf_state, config)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"{path} must hold a JSON object")
    return value


def _model_of(config: Mapping[str, Any]) -> Llama:
    """The `Llama` that a config describes; absent keys mean their defaults."""
    missing = [theirs for theirs in ("model_type", *_SIZES.values()) if theirs not in config]
    if missing:
        raise InvalidInput(f"the config lacks {', '.join(missing)}")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kv_heads = config.get("num_key_value_heads")
    values = {
        **{ours: config[theirs] for ours, theirs in _SIZES.items()},
        "kind": "llama",
        "num_kv_heads": config["num_attention_heads"] if kv_heads is None else kv_heads,
        "rope_theta": rope.get("rope_theta", config.get("rope_theta", 10000.0)),
        "norm_eps": config.get("rms_norm_eps", 1e-6),
        "init_std": config.get("initializer_range", 0.02),
        "tie_embeddings": config.get("tie_word_embeddings", False),
    }
    try:
        model = msgspec.convert(values, Llama)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the config describes no Llama: {error}") from None
    expected = {
        "model_type": (config["model_type"], "llama"),
        "hidden_act": (config.get("hidden_act", "silu"), "silu"),
        "rope_type": (rope.get("rope_type", rope.get("type", "default")), "default"),
        "head_dim": (config.get("head_dim") or model.head_dim, model.head_dim),
        "attention_bias": (config.get("attention_bias", False), False),
        "mlp_bias": (config.get("mlp_bias", False), False),
    }
    for name, (got, wanted) in expected.items():
        if got != wanted:
            raise InvalidInput(f"the config says {name} = {got!r}, but the model computes {wanted!r} only")
    return model


def _check_names(given: Iterable[str], expected: Iterable[str], what: str) -> None:
    given, expected = set(given), set(expected)
    missing, unknown = sorted(expected - given), sorted(given - expected)
    if not missing and not unknown:
        return
    lines = [f"missing: {name}" for name in missing[:5]]
    for name in unknown[:5]:
        near = get_close_matches(name, missing or sorted(expected), 1)
        lines.append(f"unknown: {name}" + (f" (nearest: {near[0]})" if near else ""))
    more = len(missing) + len(unknown) - len(lines)
    lines += [f"and {more} more"] if more else []
    raise InvalidInput(
        f"{what} lacks {len(missing)} of the model's tensors and has {len(unknown)} unknown ones", lines
    )


def _check_shapes(given: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]], what: str) -> None:
    lines = [
        f"{name}: {tuple(given[name].shape)}, expected {shape}"
        for name, shape in expected.items()
        if tuple(given[name].shape) != shape
    ]
    if lines:
        raise InvalidInput(f"{what} has {len(lines)} tensors of another shape than the model's", lines[:5])
