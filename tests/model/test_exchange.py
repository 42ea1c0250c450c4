"""Hugging Face's Llama: equal logits both ways, strict both ways, and files that it can read."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file

from elinvar.errors import InvalidInput
from elinvar.model.exchange import (
    from_hugging_face,
    hugging_face_name,
    load_hugging_face,
    save_hugging_face,
    to_hugging_face,
)
from elinvar.model.transformer import Transformer, build
from elinvar.numerics.streams import key, normal
from elinvar.spec.model import Llama, parameter_shapes
from elinvar.spec.numerics import Numerics

if "CI" in os.environ:
    import transformers
else:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SHAPES = {"vocab_size": 61, "hidden_size": 32, "num_layers": 2, "intermediate_size": 48}
MODELS = {
    "tied": Llama(**SHAPES, num_heads=4, num_kv_heads=2),
    "untied": Llama(
        **SHAPES, num_heads=4, num_kv_heads=1, tie_embeddings=False, rope_theta=5e5, norm_eps=1e-3
    ),
    "no groups": Llama(**SHAPES, num_heads=2, num_kv_heads=2),
}
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
TOKENS = torch.arange(3 * 20).view(3, 20) * 7 % 61


def weights(model):
    """Random weights in which nothing is 1 or small, so that every tensor moves the logits."""
    return {
        name: 0.2 * normal(key(name), 0, torch.Size(shape).numel()).float().view(shape) + (len(shape) == 1)
        for name, shape in parameter_shapes(model).items()
    }


def ours(model, state):
    transformer = Transformer(model, Numerics())
    transformer.load_state_dict(state)
    return transformer(TOKENS).detach()


def theirs(hf):
    hf.eval()
    with torch.no_grad():
        return hf(TOKENS).logits


@every_model
def test_their_model_with_our_weights_has_our_logits(model):
    state = weights(model)
    hf_state, config = to_hugging_face(state, model, trained_tokens=64)
    hf = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
    missing, unexpected = hf.load_state_dict(hf_state, strict=False)
    assert not unexpected
    assert missing == (["lm_head.weight"] if model.tie_embeddings else [])
    hf.tie_weights()
    expected = ours(model, state)
    assert expected.std() > 0.5
    torch.testing.assert_close(theirs(hf), expected, rtol=1e-5, atol=1e-5)


@every_model
def test_our_model_with_their_weights_has_their_logits(model):
    _, config = to_hugging_face(weights(model), model, trained_tokens=64)
    torch.manual_seed(0)
    hf = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    state, read = from_hugging_face(hf.state_dict(), hf.config.to_dict())
    assert read == model
    torch.testing.assert_close(ours(read, state), theirs(hf), rtol=1e-5, atol=1e-5)


@every_model
def test_there_and_back_moves_no_bit(model):
    state = weights(model)
    back, read = from_hugging_face(*to_hugging_face(state, model, trained_tokens=64))
    assert read == model
    assert list(back) == list(state)
    assert all(torch.equal(back[name], state[name]) for name in state)


@every_model
def test_saved_folders_are_read_by_transformers_and_by_us(model, tmp_path):
    state = weights(model)
    before = os.umask(0o027)
    try:
        save_hugging_face(tmp_path / "out", state, model, trained_tokens=64, end_of_document=60)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
    assert modes == {"config.json": 0o640, "model.safetensors": 0o640}
    hf = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(theirs(hf), ours(model, state), rtol=1e-5, atol=1e-5)
    # Their defaults for absent keys would name other tokens.
    assert (hf.config.bos_token_id, hf.config.eos_token_id) == (None, 60)
    assert hf.config.max_position_embeddings == 64
    read, read_model = load_hugging_face(tmp_path / "out")
    assert read_model == model
    assert all(torch.equal(read[name], state[name]) for name in state)
    with pytest.raises(InvalidInput, match="exists already"):
        save_hugging_face(tmp_path / "out", state, model, trained_tokens=64)


def test_folders_that_transformers_wrote_in_parts_are_read(tmp_path):
    model = MODELS["untied"]
    state = weights(model)
    hf_state, config = to_hugging_face(state, model, trained_tokens=64)
    hf = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
    hf.load_state_dict(hf_state)
    hf.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    read, read_model = load_hugging_face(tmp_path)
    assert read_model == model
    assert all(torch.equal(read[name], state[name]) for name in state)


def test_names():
    assert hugging_face_name("layers.12.attention.q.weight") == "model.layers.12.self_attn.q_proj.weight"
    model = MODELS["untied"]
    assert len({hugging_face_name(name) for name in parameter_shapes(model)}) == len(parameter_shapes(model))


def test_half_precision_is_widened_exactly_and_integers_are_refused():
    model = MODELS["tied"]
    hf_state, config = to_hugging_face(weights(model), model, trained_tokens=64)
    half = {name: value.bfloat16() for name, value in hf_state.items()}
    state, _ = from_hugging_face(half, config)
    assert all(value.dtype == torch.float32 for value in state.values())
    assert torch.equal(state["norm.weight"].bfloat16(), half["model.norm.weight"])
    half["model.norm.weight"] = half["model.norm.weight"].long()
    with pytest.raises(InvalidInput, match=r"model\.norm\.weight has dtype torch\.int64"):
        from_hugging_face(half, config)


def test_repeated_constants_are_dropped_and_a_false_tie_is_refused():
    model = MODELS["tied"]
    hf_state, config = to_hugging_face(weights(model), model, trained_tokens=64)
    hf_state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    hf_state["lm_head.weight"] = hf_state["model.embed_tokens.weight"].clone()
    assert from_hugging_face(hf_state, config)[1] == model
    hf_state["lm_head.weight"][3, 2] += 1
    with pytest.raises(InvalidInput, match=r"lm_head\.weight differs"):
        from_hugging_face(hf_state, config)


def test_missing_unknown_and_wrongly_shaped_tensors_are_named():
    model = MODELS["untied"]
    state = weights(model)
    hf_state, config = to_hugging_face(state, model, trained_tokens=64)
    moved = dict(hf_state)
    moved["model.layers.1.self_attn.q.weight"] = moved.pop("model.layers.1.self_attn.q_proj.weight")
    with pytest.raises(InvalidInput) as caught:
        from_hugging_face(moved, config)
    assert caught.value.lines == (
        "missing: model.layers.1.self_attn.q_proj.weight",
        "unknown: model.layers.1.self_attn.q.weight (nearest: model.layers.1.self_attn.q_proj.weight)",
    )
    with pytest.raises(InvalidInput, match=r"lm_head\.weight: \(60, 32\), expected \(61, 32\)"):
        from_hugging_face(hf_state | {"lm_head.weight": hf_state["lm_head.weight"][:-1]}, config)
    with pytest.raises(InvalidInput, match=r"missing: output\.weight"):
        to_hugging_face({name: state[name] for name in list(state)[:-1]}, model, trained_tokens=64)
    with pytest.raises(InvalidInput, match=r"norm\.weight: \(31,\), expected \(32,\)"):
        to_hugging_face(state | {"norm.weight": state["norm.weight"][1:]}, model, trained_tokens=64)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"model_type": "mistral"}, "model_type = 'mistral', but the model computes 'llama' only"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"mlp_bias": True}, "mlp_bias = True"),
        ({"head_dim": 16}, "head_dim = 16, but the model computes 8 only"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "rope_type = 'llama3'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2}}, "rope_type = 'linear'"),
        (
            {"vocab_size": "61"},
            "the config describes no Llama: Expected `int`, got `str` - at `\\$.vocab_size`",
        ),
        ({"num_attention_heads": 0}, "describes no Llama"),
    ],
)
def test_configs_that_mean_another_computation_are_refused(change, message):
    model = MODELS["tied"]
    hf_state, config = to_hugging_face(weights(model), model, trained_tokens=64)
    with pytest.raises(InvalidInput, match=message):
        from_hugging_face(hf_state, config | change)


def test_absent_keys_mean_their_defaults():
    model = MODELS["no groups"]
    hf_state, config = to_hugging_face(weights(model), model, trained_tokens=64)
    few = {name: config[name] for name in ("model_type", "vocab_size", "hidden_size", "intermediate_size")}
    few |= {"num_hidden_layers": 2, "num_attention_heads": 2, "tie_word_embeddings": True}
    defaults = transformers.LlamaConfig(**few)
    _, read = from_hugging_face(hf_state, few)
    assert read.norm_eps == defaults.rms_norm_eps
    assert read.num_kv_heads == defaults.num_key_value_heads
    assert read.init_std == defaults.initializer_range
    assert read.rope_theta == 10000.0
    with pytest.raises(InvalidInput, match="the config lacks hidden_size"):
        from_hugging_face(hf_state, {name: few[name] for name in few if name != "hidden_size"})


def test_broken_folders_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"cannot read .*config\.json"):
        load_hugging_face(tmp_path)
    model = MODELS["tied"]
    save_hugging_face(tmp_path / "out", weights(model), model, trained_tokens=64)
    path = tmp_path / "out" / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    with pytest.raises(InvalidInput, match=r"cannot read .*model\.safetensors"):
        load_hugging_face(tmp_path / "out")
    path.unlink()
    with pytest.raises(InvalidInput, match=r"cannot read .*model\.safetensors"):
        load_hugging_face(tmp_path / "out")
    (tmp_path / "out" / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}}))
    with pytest.raises(InvalidInput, match="has no table weight_map"):
        load_hugging_face(tmp_path / "out")


def test_a_built_model_can_be_saved_while_tied_and_trained(tmp_path):
    model = MODELS["tied"]
    transformer = build(model, Numerics(), 0)
    save_hugging_face(tmp_path / "out", dict(transformer.named_parameters()), model, trained_tokens=64)
    assert "lm_head.weight" not in load_file(tmp_path / "out" / "model.safetensors")
