"""Tiny real checkpoints (config.json, safetensors, tokenizer) that SGLang and transformers both load; a second to build.

They are built so that a draft guesses its target now and then, without training. The target's head answers each token's
embedding with a fixed successor; wide random attention adds a slowly changing context that pulls the choice elsewhere.
The draft adds the new token's embedding through its attention, and its `fc` holds a least-squares fit of the context. At
3 steps its accept length is about 1.9 with the boundaries it was fitted to, and about 1.2 with others: a wrong wiring
shows. The end-of-text token is never chosen. Everything follows from the arguments and the seed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import printable
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

BOS, EOS, UNKNOWN = 0, 1, 2
FADE = 0.8  # share of the normalised hidden state that the draft takes away
BLUNT = 0.2  # small queries attend widely: the context changes slowly along a text
QUIET = 0.2  # the MLPs say little, as what they say of a token cannot be foreseen linearly
DEEPSEEK_YARN = {
    "type": "yarn",
    "factor": 4.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
CHAT_TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"


def tiny_llama_target(
    path: Path,
    *,
    layers: int = 6,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    intermediate: int = 128,
    vocab: int = 256,
    max_positions: int = 1024,
    rope_theta: float = 10000.0,
    context: float = 1.8,
    seed: int = 0,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write a LlamaForCausalLM; `context` is how strongly the text before pulls a choice away from the token's successor."""
    size = hidden // heads
    pull = context * 6 / layers
    tensors = _Tensors(seed)
    _embedding_and_head(tensors, vocab, hidden)
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        tensors.ones(f"{prefix}.input_layernorm.weight", hidden)
        tensors.ones(f"{prefix}.post_attention_layernorm.weight", hidden)
        attention = f"{prefix}.self_attn"
        tensors.random(f"{attention}.q_proj.weight", heads * size, hidden, gain=BLUNT)
        tensors.random(f"{attention}.k_proj.weight", kv_heads * size, hidden)
        tensors.random(f"{attention}.v_proj.weight", kv_heads * size, hidden)
        tensors.random(f"{attention}.o_proj.weight", hidden, heads * size, gain=pull)
        _gated_mlp(tensors, f"{prefix}.mlp", hidden, intermediate, gain=QUIET)
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": size,
        "hidden_act": "silu",
        "rope_theta": rope_theta,
        "rms_norm_eps": 1e-5,
    }
    return _write_target(path, tensors, settings, vocab, max_positions, config)


def tiny_deepseek_target(
    path: Path,
    *,
    layers: int = 6,
    hidden: int = 64,
    heads: int = 4,
    intermediate: int = 128,
    experts: int = 8,
    vocab: int = 256,
    max_positions: int = 1024,
    context: float = 1.8,
    seed: int = 0,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write a DeepseekV3ForCausalLM: latent attention, layer 0 dense, the others mixtures of experts."""
    q_rank, kv_rank, nope, rope, value, expert = 32, 40, 16, 8, 16, 32
    pull = context * 6 / layers
    tensors = _Tensors(seed)
    _embedding_and_head(tensors, vocab, hidden)
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        tensors.ones(f"{prefix}.input_layernorm.weight", hidden)
        tensors.ones(f"{prefix}.post_attention_layernorm.weight", hidden)
        attention = f"{prefix}.self_attn"
        tensors.random(f"{attention}.q_a_proj.weight", q_rank, hidden)
        tensors.ones(f"{attention}.q_a_layernorm.weight", q_rank)
        tensors.random(f"{attention}.q_b_proj.weight", heads * (nope + rope), q_rank, gain=BLUNT)
        tensors.random(f"{attention}.kv_a_proj_with_mqa.weight", kv_rank + rope, hidden)
        tensors.ones(f"{attention}.kv_a_layernorm.weight", kv_rank)
        tensors.random(f"{attention}.kv_b_proj.weight", heads * (nope + value), kv_rank)
        tensors.random(f"{attention}.o_proj.weight", hidden, heads * value, gain=pull)
        if layer == 0:
            _gated_mlp(tensors, f"{prefix}.mlp", hidden, intermediate, gain=QUIET)
            continue
        tensors.random(f"{prefix}.mlp.gate.weight", experts, hidden)
        tensors.add(f"{prefix}.mlp.gate.e_score_correction_bias", torch.zeros(experts))
        for number in range(experts):
            _gated_mlp(tensors, f"{prefix}.mlp.experts.{number}", hidden, expert, gain=QUIET)
        _gated_mlp(tensors, f"{prefix}.mlp.shared_experts", hidden, expert, gain=QUIET)
    settings = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "moe_intermediate_size": expert,
        "num_hidden_layers": layers,
        "num_nextn_predict_layers": 0,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "q_lora_rank": q_rank,
        "kv_lora_rank": kv_rank,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": value,
        "n_routed_experts": experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": DEEPSEEK_YARN | {"original_max_position_embeddings": max_positions // 4},
    }
    return _write_target(path, tensors, settings, vocab, max_positions, config)


def tiny_draft(
    path: Path,
    target: Path,
    *,
    boundaries: Sequence[int] | None = None,
    draft_vocab: int = 224,
    heads: int = 4,
    kv_heads: int = 2,
    intermediate: int = 128,
    layers: int = 1,
    latent: bool = False,
    fit: bool = True,
    fade: float = FADE,
    sharp: float = 1.0,
    seed: int = 0,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write a LlamaForCausalLMEagle3 for a tiny target, wired to `boundaries` (default 2, N//2 + 1, N - 1).

    `layers` adds layers that say little; `latent` makes it an Eagle3DeepseekV2ForCausalLM.

    `draft_vocab` keeps the tokens that the target chooses most. `fit=False` skips running the target: `fc` is random,
    and the first ids are kept. `config` and `tensors` replace or add single entries, to build broken drafts.
    """
    target_config = json.loads((target / "config.json").read_text())
    hidden, vocab = target_config["hidden_size"], target_config["vocab_size"]
    depth = target_config["num_hidden_layers"]
    wired = tuple(boundaries or (2, depth // 2 + 1, depth - 1))
    (head,) = _read(target, "lm_head.weight")
    observed = _Observed(target, wired, seed) if fit else None
    kept = observed.frequent(draft_vocab) if observed else torch.arange(draft_vocab)
    size = hidden // kv_heads
    made = _Tensors(seed + 1)
    made.random("fc.weight", hidden, len(wired) * hidden, gain=0.1)
    if observed:
        made.replace("fc.weight", observed.context_map(fade))
    made.ones("norm.weight", hidden)
    made.add("lm_head.weight", head[kept].clone())
    made.add("d2t", kept - torch.arange(draft_vocab))
    made.add("t2d", torch.zeros(vocab, dtype=torch.bool).index_fill(0, kept, True))
    for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        made.ones(f"midlayer.{norm}.weight", hidden)
    attention = _latent_lookup(made, hidden, heads) if latent else {}
    if not latent:
        _lookup_attention(made, hidden, heads, kv_heads, fade, sharp)
    _gated_mlp(made, "midlayer.mlp", hidden, intermediate, gain=0.05)
    for layer in range(1, layers):
        _quiet_layer(made, f"layers.{layer}", hidden, heads, kv_heads, intermediate)
    settings = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": size,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocab,
        "draft_vocab_size": draft_vocab,
        "max_position_embeddings": target_config["max_position_embeddings"],
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": sglang_layer_ids(
                wired, target_config["model_type"]
            ),
        },
    }
    made.values.update(tensors or {})
    return _write(path, made, settings | attention | dict(config or {}))


def sglang_layer_ids(boundaries: Sequence[int], model_type: str) -> list[int]:
    """Return the `eagle_aux_hidden_state_layer_ids` that make SGLang 0.5.23 capture these boundaries.

    Llama-type targets add 1 to every id. DeepSeek-type targets take ids as they are, unless the first one is 1.
    """
    if model_type != "deepseek_v3":
        return [boundary - 1 for boundary in boundaries]
    if boundaries[0] == 1:
        raise ValueError("a DeepSeek-type target cannot be told to start at boundary 1")
    return list(boundaries)


class _Tensors:
    """Named tensors of a checkpoint, random ones in a fixed order from one seed."""

    def __init__(self, seed: int) -> None:
        self.values: dict[str, Tensor] = {}
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator)

    def random(self, name: str, rows: int, columns: int, *, gain: float = 1.0) -> None:
        self.add(name, self.normal(rows, columns) * gain / columns**0.5)

    def ones(self, name: str, size: int) -> None:
        self.add(name, torch.ones(size))

    def add(self, name: str, value: Tensor) -> None:
        assert name not in self.values, name
        self.values[name] = value

    def replace(self, name: str, value: Tensor) -> None:
        assert self.values[name].shape == value.shape, name
        self.values[name] = value

    def permutation(self, size: int) -> Tensor:
        return torch.randperm(size, generator=self._generator)


def _embedding_and_head(tensors: _Tensors, vocab: int, hidden: int) -> None:
    """Let the head answer token v's embedding with v's successor, and never with the end of text."""
    embedding = tensors.normal(vocab, hidden)
    head = torch.empty(vocab, hidden)
    head[tensors.permutation(vocab)] = embedding / hidden**0.5
    head[EOS] = 0.0
    tensors.add("model.embed_tokens.weight", embedding)
    tensors.add("lm_head.weight", head)
    tensors.ones("model.norm.weight", hidden)


def _gated_mlp(
    tensors: _Tensors, prefix: str, hidden: int, intermediate: int, *, gain: float
) -> None:
    tensors.random(f"{prefix}.gate_proj.weight", intermediate, hidden)
    tensors.random(f"{prefix}.up_proj.weight", intermediate, hidden)
    tensors.random(f"{prefix}.down_proj.weight", hidden, intermediate, gain=gain)


def _lookup_attention(
    tensors: _Tensors, hidden: int, heads: int, kv_heads: int, fade: float, sharp: float
) -> None:
    """Write a draft attention that adds the new token's embedding and fades what was there before.

    Every query finds its own key (queries equal keys, and equal embeddings match best), so the output is the value
    of the token itself: its normalised embedding, minus `fade` times the normalised hidden state. Without the fading, a
    fed-back state would still hold the embedding of the token before.
    """
    size = hidden // kv_heads
    group = heads // kv_heads
    eye, none = torch.eye(hidden), torch.zeros(hidden, hidden)
    key = torch.cat([eye, none], dim=1)
    per_head = key.view(kv_heads, size, 2 * hidden).repeat_interleave(group, dim=0)
    attention = "midlayer.self_attn"
    tensors.add(f"{attention}.k_proj.weight", key)
    tensors.add(f"{attention}.q_proj.weight", sharp * per_head.reshape(heads * size, 2 * hidden))
    tensors.add(f"{attention}.v_proj.weight", torch.cat([eye, -fade * eye], dim=1))
    merge = eye.view(hidden, kv_heads, 1, size).expand(-1, -1, group, -1) / group
    tensors.add(f"{attention}.o_proj.weight", merge.reshape(hidden, heads * size).contiguous())


def _latent_lookup(tensors: _Tensors, hidden: int, heads: int) -> dict[str, Any]:
    """Write the same with latent attention, and return what the config says of it.

    The latent holds embedding and faded state side by side; its norm's weight takes back what the norm changes. Keys read
    the one half, values both. The rotated part is small.
    """
    size, rope = hidden // heads, 8
    eye, none = torch.eye(hidden), torch.zeros(hidden, hidden)
    attention = "midlayer.self_attn"
    latent = torch.cat([torch.cat([eye, none], dim=1), torch.cat([none, -FADE * eye], dim=1)])
    turned = tensors.normal(rope, 2 * hidden) * 0.3 / (2 * hidden) ** 0.5
    tensors.add(f"{attention}.q_a_proj.weight", torch.cat([eye, none], dim=1))
    tensors.ones(f"{attention}.q_a_layernorm.weight", hidden)
    rows = [torch.cat([2 * block, tensors.normal(rope, hidden) * 0.1]) for block in eye.split(size)]
    tensors.add(f"{attention}.q_b_proj.weight", torch.cat(rows))
    tensors.add(f"{attention}.kv_a_proj_with_mqa.weight", torch.cat([latent, turned]))
    norm = ((1 + FADE**2) / 2) ** 0.5
    tensors.add(f"{attention}.kv_a_layernorm.weight", torch.full((2 * hidden,), norm))
    key, value = torch.cat([eye, none], dim=1), torch.cat([eye, eye], dim=1)
    pairs = zip(key.split(size), value.split(size), strict=True)
    tensors.add(
        f"{attention}.kv_b_proj.weight", torch.cat([part for pair in pairs for part in pair])
    )
    tensors.add(f"{attention}.o_proj.weight", eye.clone())
    return {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_key_value_heads": heads,
        "head_dim": size + rope,
        "q_lora_rank": hidden,
        "kv_lora_rank": 2 * hidden,
        "qk_nope_head_dim": size,
        "qk_rope_head_dim": rope,
        "v_head_dim": size,
        "target_hidden_size": None,
        "rope_scaling": DEEPSEEK_YARN | {"original_max_position_embeddings": 256},
    }


def _quiet_layer(
    tensors: _Tensors, prefix: str, hidden: int, heads: int, kv_heads: int, intermediate: int
) -> None:
    """Write a later layer of a draft, which sees the hidden state alone and adds a little to it."""
    size = hidden // kv_heads
    for norm in ("hidden_norm", "post_attention_layernorm"):
        tensors.ones(f"{prefix}.{norm}.weight", hidden)
    tensors.random(f"{prefix}.self_attn.q_proj.weight", heads * size, hidden)
    tensors.random(f"{prefix}.self_attn.k_proj.weight", kv_heads * size, hidden)
    tensors.random(f"{prefix}.self_attn.v_proj.weight", kv_heads * size, hidden)
    tensors.random(f"{prefix}.self_attn.o_proj.weight", hidden, heads * size, gain=0.2)
    _gated_mlp(tensors, f"{prefix}.mlp", hidden, intermediate, gain=0.05)


class _Observed:
    """What the target makes of a text that wanders along successors and jumps now and then (one pass, transformers)."""

    def __init__(self, target: Path, boundaries: Sequence[int], seed: int) -> None:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
        embedding, head = _read(target, "model.embed_tokens.weight", "lm_head.weight")
        self._embedding = embedding
        self._tokens = _wander(
            (embedding @ head.T).argmax(dim=1), sequences=48, length=64, seed=seed
        )
        with torch.inference_mode():
            inner = model.model
            states = inner(self._tokens, output_hidden_states=True).hidden_states
            self._captured = torch.cat([states[b] for b in boundaries], dim=-1)
            self._last = _before_final_norm(inner, self._tokens)
            self._choices = model.lm_head(states[-1]).argmax(dim=-1)

    def frequent(self, count: int) -> Tensor:
        """Return the ids chosen most often, ascending; ties go to the smaller id."""
        counts = torch.bincount(self._choices.flatten(), minlength=len(self._embedding))
        return counts.argsort(descending=True, stable=True)[:count].sort().values

    def context_map(self, fade: float) -> Tensor:
        """Fit `fc` [H, A*H]: what the last state at i + 1 holds beside its own token, from the states at i.

        The result is enlarged by what the draft's attention takes away again.
        """
        context = (self._last - self._embedding[self._tokens])[:, 1:].flatten(0, 1).double()
        captured = self._captured[:, :-1].flatten(0, 1).double()
        ridge = 1e-2 * len(captured) * torch.eye(captured.shape[1], dtype=torch.float64)
        solution = torch.linalg.solve(captured.T @ captured + ridge, captured.T @ context)
        size = (captured @ solution).square().mean().sqrt()
        return (solution.T * (1 + fade / size)).float().contiguous()


def _wander(successor: Tensor, *, sequences: int, length: int, seed: int) -> Tensor:
    """Return token ids [sequences, length]: mostly each token's successor, every third time any token."""
    generator = torch.Generator().manual_seed(seed)
    shape = (length, sequences)
    jumps = torch.randint(UNKNOWN + 1, len(successor), shape, generator=generator)
    jumping = torch.rand(shape, generator=generator) < 1 / 3
    rows = [jumps[0]]
    for jump, jumps_now in zip(jumps[1:], jumping[1:], strict=True):
        rows.append(torch.where(jumps_now, jump, successor[rows[-1]]))
    return torch.stack(rows, dim=1)


def _before_final_norm(inner: Any, tokens: Tensor) -> Tensor:
    """Return the residual stream behind the last layer, which transformers shows only after the final norm."""
    seen: list[Tensor] = []
    handle = inner.norm.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    try:
        inner(tokens)
    finally:
        handle.remove()
    return seen[0]


def _write_target(
    path: Path,
    tensors: _Tensors,
    settings: dict[str, Any],
    vocab: int,
    max_positions: int,
    changes: Mapping[str, Any] | None,
) -> Path:
    common = {
        "vocab_size": vocab,
        "max_position_embeddings": max_positions,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "torch_dtype": "float32",
    }
    _write(path, tensors, settings | common | dict(changes or {}))
    _write_tokenizer(path, vocab, max_positions)
    generation = {"bos_token_id": BOS, "eos_token_id": EOS}
    (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def _write(path: Path, tensors: _Tensors, config: dict[str, Any]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config, indent=2))
    save_file(tensors.values, path / "model.safetensors", metadata={"format": "pt"})
    return path


def _write_tokenizer(path: Path, vocab: int, max_positions: int) -> None:
    """Write a tokenizer with one token per printable ASCII character; the ids above are fillers."""
    names = ["<s>", "</s>", "<unk>", *dict.fromkeys(printable)]
    assert len(names) <= vocab, f"the tokenizer needs a vocabulary of {len(names)}"
    names += [f"<{number}>" for number in range(len(names), vocab)]
    tokenizer = Tokenizer(
        models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "model_max_length": max_positions,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


def _read(path: Path, *names: str) -> list[Tensor]:
    from safetensors import safe_open

    with safe_open(path / "model.safetensors", framework="pt") as file:
        return [file.get_tensor(name) for name in names]
