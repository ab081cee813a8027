"""The draft's forward pass as obviously as possible: one start row at a time, one key list, plain loops."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor


class NaiveDraft:
    """Reads the checkpoint itself; shares no code with the package."""

    def __init__(self, draft: Path, target: Path) -> None:
        config = json.loads((draft / "config.json").read_text())
        self.w = {k: v.float() for k, v in load_file(draft / "model.safetensors").items()}
        self.embedding = load_file(target / "model.safetensors")[
            "model.embed_tokens.weight"
        ].float()
        self.target_embedding = self.embedding  # `embedding` may be replaced by a draft's own
        self.config = config
        self.layers = config["num_hidden_layers"]
        self.heads = config["num_attention_heads"]
        self.kv_heads = config["num_key_value_heads"]
        self.latent = "kv_lora_rank" in config
        self.size = config["qk_rope_head_dim" if self.latent else "head_dim"]
        self.theta = config["rope_theta"]
        self.rotary_width = self.size  # of the head that the frequencies are made for
        self.residual_behind_norm = False
        self.interleaved = self.latent or not config.get("rope_is_neox_style", True)
        self.eps = config["rms_norm_eps"]
        nested = config.get("eagle_config", {})
        self.norm_before_fc = nested.get("norm_before_fc", config.get("norm_before_fc", False))
        self.fc_norm = config.get("fc_norm", False)
        self.norm_output = config.get("norm_output", False)

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean() + self.eps).sqrt() * self.w[name]

    def rotate(self, x: Tensor, position: int) -> Tensor:
        half = self.size // 2
        out = x.clone()
        for pair in range(half):
            first, second = (2 * pair, 2 * pair + 1) if self.interleaved else (pair, pair + half)
            angle = torch.tensor(position * self.theta ** (-2 * pair / self.rotary_width))
            a, b = x[first], x[second]
            out[first] = a * angle.cos() - b * angle.sin()
            out[second] = a * angle.sin() + b * angle.cos()
        return out

    def fuse(self, states: Tensor) -> Tensor:
        x = states.flatten()
        if self.norm_before_fc:
            x = self.norm(x, "input_norm.weight")
        if self.fc_norm:
            x = torch.cat([self.norm(s, f"fc_norm.{n}.weight") for n, s in enumerate(states)])
        return self.w["fc.weight"] @ x

    def step(self, token: int, hidden: Tensor, position: int, cache: list) -> tuple[int, Tensor]:
        """Append this row to each layer's cache, attend over all of it; return target id and feedback."""
        for number in range(self.layers):
            layer = "midlayer." if number == 0 else f"layers.{number}."
            x = self.norm(hidden, f"{layer}hidden_norm.weight")
            if number == 0 and self.residual_behind_norm:
                hidden = x
            if number == 0:
                first = self.norm(self.embedding[token], f"{layer}input_layernorm.weight")
                x = torch.cat([first, x])
            attend = self.attend_latent if self.latent else self.attend
            attended = attend(f"{layer}self_attn.", x, position, cache[number])
            middle = hidden + self.w[f"{layer}self_attn.o_proj.weight"] @ attended
            x = self.norm(middle, f"{layer}post_attention_layernorm.weight")
            gate = self.w[f"{layer}mlp.gate_proj.weight"] @ x
            inner = gate * torch.sigmoid(gate) * (self.w[f"{layer}mlp.up_proj.weight"] @ x)
            hidden = middle + self.w[f"{layer}mlp.down_proj.weight"] @ inner
        normed = self.norm(hidden, "norm.weight")
        self.logits = self.w["lm_head.weight"] @ normed
        return self.mapped(int(self.logits.argmax())), normed if self.norm_output else hidden

    def mapped(self, choice: int) -> int:
        return choice + int(self.w["d2t"][choice]) if "d2t" in self.w else choice

    def best(self, count: int) -> list[tuple[float, int]]:
        """Return probability and target id of the most probable tokens after the last step."""
        order = self.logits.argsort(descending=True)[:count].tolist()
        return [(float(self.logits.softmax(0)[choice]), self.mapped(choice)) for choice in order]

    def attend(self, name: str, x: Tensor, position: int, cache: list) -> Tensor:
        """Grouped-query attention of one row over the cache and itself."""

        def heads(projection: str, count: int) -> list[Tensor]:
            return list((self.w[f"{name}{projection}.weight"] @ x).view(count, self.size))

        keys = [self.rotate(key, position) for key in heads("k_proj", self.kv_heads)]
        cache.append((keys, heads("v_proj", self.kv_heads)))
        parts = []
        for number, query in enumerate(heads("q_proj", self.heads)):
            group = number // (self.heads // self.kv_heads)
            turned = self.rotate(query, position)
            scores = torch.stack([turned @ k[group] for k, _ in cache]) / self.size**0.5
            share = scores.softmax(0)
            parts.append(sum(s * v[group] for s, (_, v) in zip(share, cache, strict=True)))
        return torch.cat(parts)

    def attend_latent(self, name: str, x: Tensor, position: int, cache: list) -> Tensor:
        """Latent attention in its absorbed form: the cache holds latents and one rotated key per row."""
        c = self.config
        nope, rank = c["qk_nope_head_dim"], c["kv_lora_rank"]
        both = self.w[f"{name}kv_a_proj_with_mqa.weight"] @ x
        latent = self.norm(both[:rank], f"{name}kv_a_layernorm.weight")
        cache.append((latent, self.rotate(both[rank:], position)))
        low = self.norm(self.w[f"{name}q_a_proj.weight"] @ x, f"{name}q_a_layernorm.weight")
        queries = (self.w[f"{name}q_b_proj.weight"] @ low).view(self.heads, -1)
        maps = self.w[f"{name}kv_b_proj.weight"].view(self.heads, -1, rank)
        parts = []
        for query, both_maps in zip(queries, maps, strict=True):
            absorbed = both_maps[:nope].T @ query[:nope]
            turned = self.rotate(query[nope:], position)
            scores = torch.stack([absorbed @ low + turned @ key for low, key in cache])
            share = (scores / (nope + self.size) ** 0.5).softmax(0)
            mixed = sum(s * low for s, (low, _) in zip(share, cache, strict=True))
            parts.append(both_maps[nope:] @ mixed)
        return torch.cat(parts)

    def tokens(
        self, states: Tensor, token_ids: Tensor, row: int, steps: int, told: list[int] | None = None
    ) -> list[int]:
        """Return the chain of target ids drafted from a start row, fed its own tokens or those `told`."""
        cache: list = [[] for _ in range(self.layers)]
        for i in range(row + 1):
            token, fed = self.step(int(token_ids[i + 1]), self.fuse(states[i]), i, cache)
        chain = [token]
        for k in range(1, steps):
            before = chain[-1] if told is None else told[k - 1]
            token, fed = self.step(before, fed, row + k, cache)
            chain.append(token)
        return chain

    def tree(
        self, states: Tensor, token_ids: Tensor, row: int, shape: tuple[int, int, int]
    ) -> list[tuple[int, ...]]:
        """Return the paths of a (steps, topk, draft tokens) tree from a start row: token ids from the root's child on.

        Slots hold a path, its score and the state fed next; their keys are those drafted in the same slot before.
        """
        steps, topk, tokens = shape
        prefix: list = [[] for _ in range(self.layers)]
        for i in range(row + 1):
            _, fed = self.step(int(token_ids[i + 1]), self.fuse(states[i]), i, prefix)
        slots = [((token,), score, fed) for score, token in self.best(topk)]
        candidates = [(score, path) for path, score, _ in slots]
        caches = [[list(layer) for layer in prefix] for _ in range(topk)]
        for k in range(1, steps):
            grown = []
            for (path, score, fed), cache in zip(slots, caches, strict=True):
                _, more = self.step(path[-1], fed, row + k, cache)
                grown += [((*path, token), score * p, more) for p, token in self.best(topk)]
            candidates += [(score, path) for path, score, _ in grown]
            slots = sorted(grown, key=lambda each: -each[1])[:topk]
        return [path for _, path in sorted(candidates, key=lambda each: -each[0])[: tokens - 1]]


def followed(paths: list[tuple[int, ...]], text: list[int]) -> int:
    """Return how far the paths of a tree follow a text."""
    return max(n for n in range(len(text) + 1) if n == 0 or tuple(text[:n]) in paths)
