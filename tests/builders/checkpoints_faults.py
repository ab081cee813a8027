"""The smallest change of a healthy draft that brings about each finding, by the finding's id."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.builders.checkpoints import HIDDEN, IDS_KEY, VOCAB, Parts, weight
from tests.builders.checkpoints_dialects import eagle, mla, modelopt, plain, speculators
from tests.builders.checkpoints_targets import Headers


def _config(**changes: Any) -> Callable[[Parts], None]:
    return lambda parts: parts.config.update(changes)


def _without(key: str) -> Callable[[Parts], None]:
    return lambda parts: parts.config.pop(key)


def _target(**changes: Any) -> Callable[[Parts], None]:
    return lambda parts: parts.target.update(changes)


def _ids(*ids: Any) -> Callable[[Parts], None]:
    return lambda parts: parts.config["eagle_config"].update({IDS_KEY: list(ids)})


def _add(**tensors: Any) -> Callable[[Parts], None]:
    return lambda parts: parts.tensors.update(
        {name.replace("__", "."): value for name, value in tensors.items()}
    )


def _drop(*names: str) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        for name in names:
            del parts.tensors[name]

    return change


def _both(*changes: Callable[[Parts], None]) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        for one in changes:
            one(parts)

    return change


def _values(name: str, change: Callable[[Any], Any]) -> Callable[[Parts], None]:
    def apply(parts: Parts) -> None:
        parts.tensors[name] = change(parts.tensors[name].copy())

    return apply


def _set(index: Any, value: Any) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        array[index] = value
        return array

    return change


def _top_level_ids(parts: Parts) -> None:
    del parts.config["eagle_config"]
    parts.config[IDS_KEY] = [3, 6, 10]


def _unlike_t2d(array: Any) -> Any:
    array[np.flatnonzero(array)[0]] = False
    array[np.flatnonzero(~array)[-1]] = True
    return array


def _one_folder(parts: Parts) -> None:
    plain(parts)
    parts.tensors["lm_head.weight"] = weight(VOCAB, HIDDEN)
    parts.same_folder = True


def _two_latent_layers(parts: Parts) -> None:
    mla(parts)
    parts.config["num_hidden_layers"] = 2
    for name, value in list(parts.tensors.items()):
        if name.startswith("midlayer."):
            # Later layers see no embedding, so what reads the state is half as wide.
            narrow = (
                value[:, :HIDDEN] if name.endswith(("q_a_proj.weight", "mqa.weight")) else value
            )
            parts.tensors[name.replace("midlayer", "layers.1")] = narrow


def _speculators_silent(parts: Parts) -> None:
    speculators(parts)
    del parts.config["norm_before_residual"], parts.tensors["embed_tokens.weight"]


def _speculators(parts: Parts) -> None:
    speculators(parts)
    del parts.tensors["embed_tokens.weight"]


def _eagle(**changes: Any) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        eagle(parts)
        parts.config.update(changes)
        parts.target.update(changes)

    return change


def _tokenizers(parts: Parts) -> None:
    words = ["a", "b", "c"]
    for files, order in ((parts.files, words), (parts.target_files, ["a", "c", "b"])):
        vocab = {word: number for number, word in enumerate(order)}
        files["tokenizer.json"] = json.dumps({"model": {"vocab": vocab}}).encode()


def _labelled_eagle(parts: Parts) -> None:
    _speculators(parts)
    parts.config["speculators_config"]["algorithm"] = "eagle"


def _templates(parts: Parts) -> None:
    parts.files["chat_template.jinja"] = b"{{ messages[0].content }}"
    config = {"chat_template": "<user>{{ messages[0].content }}"}
    parts.target_files["tokenizer_config.json"] = json.dumps(config).encode()


def _stop_outside_the_map(parts: Parts) -> None:
    parts.target["eos_token_id"] = int(np.flatnonzero(~parts.tensors["t2d"])[0])


def _weights(change: Callable[[Headers], object] | None, **config: Any) -> Callable[[Parts], None]:
    """Change the headers of the target's weights, and its config."""

    def apply(parts: Parts) -> None:
        parts.target_weights = change
        parts.target.update(config)

    return apply


def _cut_target(parts: Parts) -> None:
    parts.target_weights = None
    parts.target_files["model.safetensors"] = bytes(4)


_ones = np.ones(HIDDEN, dtype=np.float32)
_no_map = _drop("d2t", "t2d")

FAULTS: dict[str, Callable[[Parts], None]] = {
    "boundaries.aux-off": lambda parts: parts.config["eagle_config"].update(
        {"use_aux_hidden_state": False}
    ),
    "boundaries.count": _ids(1, 8),
    "boundaries.default": _without("eagle_config"),
    "boundaries.key-ignored": _top_level_ids,
    "boundaries.not-a-list": lambda parts: parts.config["eagle_config"].update({IDS_KEY: "1,5,8"}),
    "boundaries.order": _ids(8, 1, 5),
    "boundaries.range": _ids(1, 5, 11),
    "boundaries.repeated": _ids(1, 5, 5),
    "config.architecture": _config(architectures=["LlamaForCausalLM"]),
    "config.draft-vocab-size": _without("draft_vocab_size"),
    "config.dtype": _config(torch_dtype="float8?"),
    "config.dtype-differs": _both(_config(torch_dtype="float16"), _target(torch_dtype="bfloat16")),
    "config.heads": _both(
        _config(num_key_value_heads=3),
        _add(
            midlayer__self_attn__k_proj__weight=weight(24, 64),
            midlayer__self_attn__v_proj__weight=weight(24, 64),
        ),
    ),
    "config.hidden-act": _config(hidden_act="gelu"),
    "config.layer-types": _config(layer_types=["sliding_attention"] * 4, sliding_window=4096),
    "config.layers": _two_latent_layers,
    "config.model-type": _without("model_type"),
    "config.not-a-block": _config(rope_scaling="yarn"),
    "config.not-a-flag": _config(norm_output="no"),
    "config.not-a-number": _config(rms_norm_eps=float("inf")),
    "config.not-a-size": _config(draft_vocab_size=True),
    "config.not-a-token-id": _config(bos_token_id="1"),
    "config.null": _config(use_cache=None),
    "config.target-hidden-size": _config(target_hidden_size=None),
    "draft.algorithm": _labelled_eagle,
    "draft.convert-first": _speculators,
    "draft.is-target": _one_folder,
    "draft.pickled": lambda parts: setattr(parts, "pickled", True),
    "draft.not-eagle3": _both(
        _config(architectures=["LlamaForCausalLM"]),
        _drop("fc.weight", "midlayer.hidden_norm.weight"),
    ),
    "embedding.overwritten": _add(embed_tokens__weight=weight(VOCAB, HIDDEN)),
    "head.from-target": _both(
        _config(draft_vocab_size=None),
        _no_map,
        _add(lm_head__weight=weight(VOCAB, HIDDEN)),
    ),
    "head.tied": _config(tie_word_embeddings=True),
    "meaning.attention-bias": _config(attention_bias=True),
    "meaning.modelopt": lambda parts: parts.config["eagle_config"].update(
        {"use_last_layernorm": False}
    ),
    "meaning.sliding-window": _config(layer_types=["sliding_attention"], sliding_window=2048),
    "norms.before-residual": _config(norm_before_residual=True),
    "norms.before-residual-unsaid": _speculators_silent,
    "norms.flag-missing": _add(input_norm__weight=np.ones(3 * HIDDEN, dtype=np.float32)),
    "norms.input-norm-shape": _both(
        _config(norm_before_fc=True), _add(input_norm__weight=np.ones(HIDDEN, dtype=np.float32))
    ),
    "meaning.modelopt-first-norm": modelopt,
    "norms.bare-head": _config(transformers_version="4.57.1", norm_output=False),
    "norms.output-specforge": _config(transformers_version="4.57.1", norm_output=True),
    "norms.tensor-missing": _config(fc_norm=True),
    "parallel.draft-indivisible": _target(num_attention_heads=8, num_key_value_heads=8),
    "parallel.embedding-pieces": _target(vocab_size=200),
    "rope.differs": _target(rope_theta=500000.0),
    "rope.eagle-training": _eagle(rope_theta=500000.0),
    "rope.missing": _both(_without("rope_theta"), _target(rope_theta=500000.0)),
    "rope.numbers": _both(
        _config(rope_scaling={"type": "yarn"}), _target(rope_scaling={"type": "yarn"})
    ),
    "rope.theta": _config(rope_theta=0),
    "rope.type": _both(
        _config(rope_scaling={"type": "spiral"}), _target(rope_scaling={"type": "spiral"})
    ),
    "target.architecture": _target(architectures=["MambaForCausalLM"]),
    "target.context-length": _target(max_position_embeddings=4096),
    "target.hidden-size": _target(hidden_size=64),
    "target.layers-beyond": _weights(
        lambda headers: headers.update({"model.layers.12.input_layernorm.weight": ("F16", [32])})
    ),
    "target.not-checked": _weights(None),
    "target.quantisation-scales": _weights(
        lambda headers: None, quantization_config={"quant_method": "fp8"}
    ),
    "target.quantisation-unknown": _weights(
        lambda headers: None, quantization_config={"quant_method": "squeezellm"}
    ),
    "target.quantisation-unsaid": _weights(
        lambda headers: headers.update(
            {"model.layers.0.mlp.up_proj.weight_scale": ("F32", [48, 1])}
        )
    ),
    "target.sizes": lambda parts: parts.target.pop("num_hidden_layers"),
    "target.tensor-shape": _weights(
        lambda headers: headers.update({"model.layers.3.mlp.up_proj.weight": ("F16", [40, 32])})
    ),
    "target.tensors-missing": _weights(
        lambda headers: headers.pop("model.layers.7.self_attn.k_proj.weight")
    ),
    "target.unreadable": _cut_target,
    "target.vocab-size": _config(vocab_size=VOCAB - 8),
    "tensors.clash": _add(layers__0__mlp__up_proj__weight=weight(48, 32)),
    "tensors.dropped": _add(midlayer__self_attn__q_norm__weight=_ones[:8]),
    "tensors.dtype": _values("fc.weight", lambda array: array.astype(np.int8)),
    "tensors.fc-bias": _add(fc__bias=_ones),
    "tensors.missing": _drop("midlayer.mlp.up_proj.weight"),
    "tensors.other-files": lambda parts: parts.files.update({"consolidated.safetensors": b""}),
    "tensors.shape": _values("midlayer.self_attn.q_proj.weight", lambda array: array[:, :HIDDEN]),
    "tensors.unused": _add(verifier_norm__weight=_ones),
    "tokenizer.chat-template": _templates,
    "tokenizer.differs": _tokenizers,
    "tokenizer.special-tokens": _both(_config(pad_token_id=3), _target(pad_token_id=4)),
    "tokenizer.stop-tokens": _both(
        _config(eos_token_id=3), _target(eos_token_id=list(range(4, VOCAB)))
    ),
    "values.all-zero": _values("midlayer.mlp.down_proj.weight", np.zeros_like),
    "values.constant": _values("fc.weight", lambda array: np.full_like(array, 0.5)),
    "values.not-finite": _values("fc.weight", _set((0, 3), np.nan)),
    "values.range": _values("fc.weight", _set((0, 3), 1e5)),
    "values.scale": _values("fc.weight", lambda array: array * 1000),
    "vocab.beyond-target": _both(
        _config(draft_vocab_size=VOCAB, vocab_size=VOCAB),
        _no_map,
        _add(lm_head__weight=weight(VOCAB, HIDDEN)),
        _target(vocab_size=VOCAB - 8),
    ),
    "vocab.d2t-absolute": _values("d2t", lambda array: array + np.arange(len(array))),
    "vocab.d2t-ambiguous": _both(
        _drop("t2d"), _values("d2t", lambda array: np.arange(len(array), dtype=np.int64))
    ),
    "vocab.d2t-dtype": _values("d2t", lambda array: array.astype(np.float32)),
    "vocab.d2t-missing": _no_map,
    "vocab.d2t-range": _values("d2t", _set(5, -9)),
    "vocab.d2t-repeats": _both(
        _drop("t2d"), _values("d2t", lambda array: _set(7, array[6] - 1)(array))
    ),
    "vocab.no-stop-token": _stop_outside_the_map,
    "vocab.sizes": _values("d2t", lambda array: array[:12]),
    "vocab.t2d-disagrees": _values("t2d", _unlike_t2d),
}
# Findings that go with another one because both are true: the fault has two sides.
COMPANIONS = {
    "vocab.beyond-target": {"target.vocab-size"},
    "boundaries.key-ignored": {"boundaries.default"},
    "draft.algorithm": {"draft.convert-first"},
    "parallel.embedding-pieces": {"target.vocab-size"},
    "norms.before-residual-unsaid": {"draft.convert-first"},
    "rope.eagle-training": {"config.architecture", "boundaries.default"},
}
