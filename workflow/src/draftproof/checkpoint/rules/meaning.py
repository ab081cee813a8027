"""Rules on training choices that the engine must repeat at serving time: norms, biases, windows."""

from __future__ import annotations

from collections.abc import Iterator

from draftproof.checkpoint import layout
from draftproof.checkpoint.configuration import eagle_config
from draftproof.checkpoint.findings import Fault, rule
from draftproof.checkpoint.pair import Pair

MODEL = "models/llama_eagle3.py, LlamaModel.__init__"
MODELOPT_USUAL = {
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
}


@rule("norms.flag-missing", "error", f"{MODEL} (input_norm, fc_norm)", layout=True)
def flag_missing(pair: Pair) -> Iterator[Fault]:
    """The checkpoint has a norm before fc, but the config does not switch it on: the engine drops it."""
    for prefix, flag, on in _norms(pair):
        found = [name for name in pair.names if name.startswith(prefix)]
        if found and not on:
            yield Fault(
                subject=flag,
                message=f"{found[0]} is dropped: the config does not say {flag}",
                evidence={"tensors": found, flag: pair.draft.get(flag)},
                fix=f'Write "{flag}": true.',
            )


@rule("norms.tensor-missing", "error", f"{MODEL} (input_norm, fc_norm)", layout=True)
def tensor_missing(pair: Pair) -> Iterator[Fault]:
    """The config switches on a norm before fc that the checkpoint lacks: its weights stay ones."""
    for prefix, flag, on in _norms(pair):
        numbered = range(pair.effective.num_aux_hidden_states.value or 0)
        wanted = (
            ["input_norm.weight"]
            if prefix == "input_norm."
            else [f"fc_norm.{number}.weight" for number in numbered]
        )
        absent = [name for name in wanted if name not in pair.names]
        if on and absent:
            yield Fault(
                subject=flag,
                message=f"the config says {flag}, but {absent[0]} is missing and would stay at ones",
                evidence={"missing": absent},
                fix=f'Export the norm, or write "{flag}": false if the draft has none.',
            )


@rule("norms.input-norm-shape", "error", f"{MODEL} (input_norm)", layout=True)
def input_norm_shape(pair: Pair) -> Iterator[Fault]:
    """The norm before fc is not as wide as fc."""
    fc, norm = pair.tensor(layout.FC), pair.tensor("input_norm.weight")
    if fc and norm and len(fc.shape) == 2 and norm.shape != fc.shape[1:]:
        yield Fault(
            subject="input_norm.weight",
            message=f"input_norm.weight has shape {list(norm.shape)}, fc takes {fc.shape[1]} values",
            evidence={"input_norm": list(norm.shape), "fc": list(fc.shape)},
            fix="Export both from one training run.",
        )


@rule(
    "norms.before-residual",
    "error",
    "models/llama_eagle3.py, LlamaDecoderLayer.forward (residual = the state before its norm)",
)
def before_residual(pair: Pair) -> Iterator[Fault]:
    """The draft was trained with the normalised state as residual; the engine always adds the plain one."""
    nested = eagle_config(pair.draft)
    if pair.draft.get("norm_before_residual") or nested.get("norm_before_residual"):
        yield Fault(
            subject="norm_before_residual",
            message="norm_before_residual is true; the engine cannot compute that and no change of weights replaces it",
            fix="Train with norm_before_residual off, serve with vLLM, or patch LlamaDecoderLayer of the engine.",
        )


@rule(
    "norms.before-residual-unsaid",
    "error",
    "speculators reads the missing key as false, vLLM as true",
)
def before_residual_unsaid(pair: Pair) -> Iterator[Fault]:
    """A speculators config does not say norm_before_residual, and its readers disagree on what that means."""
    if pair.dialect.name == "speculators" and pair.source.get("norm_before_residual") is None:
        yield Fault(
            subject="norm_before_residual",
            message="norm_before_residual is missing; speculators reads that as false, vLLM as true",
            fix="Write what the draft was trained with; only false can be served here.",
        )


@rule(
    "norms.output-specforge",
    "warning",
    "SpecForge modeling/draft/llama3_eagle.py, compute_logits",
)
def output_specforge(pair: Pair) -> Iterator[Fault]:
    """SpecForge's norm_output is about its head; the engine would feed back the normed state, which was not trained."""
    if pair.dialect.name == "specforge" and pair.source.get("norm_output") is True:
        yield Fault(
            subject="norm_output",
            message="norm_output is true: SpecForge feeds back the state before the norm all the same, the engine would not",
            evidence={"norm_output": True},
            fix="draftproof convert leaves the key out. If another trainer made this draft, say so by leaving out"
            " transformers_version.",
        )


@rule(
    "meaning.modelopt",
    "error",
    "models/llama_eagle3.py reads none of these keys",
)
def modelopt(pair: Pair) -> Iterator[Fault]:
    """Model-Optimizer trained another arrangement of norms or layers than the engine computes."""
    nested = eagle_config(pair.source)
    other = {k: nested[k] for k, usual in MODELOPT_USUAL.items() if nested.get(k, usual) != usual}
    if pair.dialect.name == "modelopt" and other:
        yield Fault(
            subject=f"eagle_config.{next(iter(other))}",
            message=f"the draft was trained with {other}, which the engine does not compute",
            evidence=other,
            fix="Train with Model-Optimizer's defaults, or serve with TensorRT-LLM.",
        )


@rule(
    "norms.bare-head",
    "error",
    "SpecForge modeling/draft/llama3_eagle.py, compute_logits; the engine always norms before the head",
)
def bare_head(pair: Pair) -> Iterator[Fault]:
    """SpecForge's norm_output false trains the head on states without the final norm, which the engine always applies."""
    if pair.dialect.name == "specforge" and pair.source.get("norm_output") is False:
        yield Fault(
            subject="norm_output",
            message="the head was trained on states without the final norm, which the engine puts before every head",
            evidence={"norm_output": False},
            fix="Train with norm_output true (SpecForge's default).",
        )


@rule(
    "meaning.modelopt-first-norm",
    "warning",
    "Model-Optimizer 0.47.0 modeling_eagle.py: the layer norms what its hook on attention norms again",
    layout=True,
)
def modelopt_first_norm(pair: Pair) -> Iterator[Fault]:
    """Model-Optimizer's Hugging Face flow norms the state with input_layernorm before hidden_norm; engines with hidden_norm alone.

    The two are the same while all values of input_layernorm are equal, as before training. Versions before
    ``parallel_draft_step`` appeared in the config did not do so.
    """
    first = pair.tensor("layers.0.input_layernorm.weight")
    nested = eagle_config(pair.source)
    if pair.dialect.name != "modelopt" or "parallel_draft_step" not in nested or first is None:
        return
    if not pair.scans[first.name].constant:
        yield Fault(
            subject=first.name,
            message="Model-Optimizer's Hugging Face flow trains the state normed twice, with input_layernorm's weights"
            " too; the engine norms it once",
            evidence={
                "trained": "hidden_norm(input_layernorm(state))",
                "served": "hidden_norm(state)",
            },
            fix="Nothing to do if the Megatron flow trained it. Else compare acceptance with training's; what is lost comes back by training on with a trainer that norms"
            " once (SpecForge, speculators).",
        )


@rule(
    "meaning.attention-bias",
    "error",
    "models/llama.py, LlamaAttention.__init__ (o_proj: attention_bias or bias)",
    layout=True,
)
def attention_bias(pair: Pair) -> Iterator[Fault]:
    """The bias of attention's output and the config's switches do not go together."""
    if pair.effective.latent.value:
        return
    has = any(name.endswith("self_attn.o_proj.bias") for name in pair.names)
    switches = {key: bool(pair.draft.get(key)) for key in ("attention_bias", "bias")}
    said_elsewhere = any(layout.DROPPED_COMPUTATION.fullmatch(name) for name in pair.names) or (
        switches["bias"] and "fc.bias" not in pair.names
    )
    if has != any(switches.values()) and not said_elsewhere:
        yield Fault(
            subject="o_proj.bias",
            message="o_proj.bias is dropped: the config says neither attention_bias nor bias"
            if has
            else "the config switches biases on, but there is no o_proj.bias: it would stay at random values",
            evidence={**switches, "o_proj.bias": has},
            fix="Make the switch say what the weights have.",
        )


@rule(
    "meaning.sliding-window",
    "warning",
    "models/llama_eagle3.py (only --speculative-draft-window-size counts)",
    layout=True,
)
def sliding_window(pair: Pair) -> Iterator[Fault]:
    """The draft was trained with a sliding window, which the engine does not read from the config."""
    kinds = pair.draft.get("layer_types")
    layers = pair.effective.num_hidden_layers.value
    if isinstance(kinds, list) and "sliding_attention" in kinds and len(kinds) == layers:
        window = pair.draft.get("sliding_window")
        yield Fault(
            subject="layer_types",
            message=f"the draft attends within a window of {str(window)[:20]}; the engine attends to everything",
            evidence={"layer_types": kinds, "sliding_window": window},
            fix=f"Serve with --speculative-draft-window-size {str(window)[:20]} for prompts longer than that.",
        )


@rule("embedding.overwritten", "info", "models/llama.py, set_embed", layout=True)
def embedding_overwritten(pair: Pair) -> Iterator[Fault]:
    """The draft brings an embedding, which the engine replaces with the target's."""
    if (
        layout.EMBEDDING in pair.names
        and pair.effective.embedding_source.value == "target"
        and not pair.draft.get("tie_word_embeddings")
    ):
        yield Fault(
            subject=layout.EMBEDDING,
            message="the engine replaces the draft's embed_tokens with the target's",
            fix="Nothing to do if it was frozen during training; else retrain with it frozen.",
        )


def _norms(pair: Pair) -> list[tuple[str, str, bool]]:
    """Return (start of the tensors' names, flag, whether it is on) of the norms before fc that the engine has."""
    whole = ("input_norm.", "norm_before_fc", pair.effective.norm_before_fc.value)
    each = ("fc_norm.", "fc_norm", pair.effective.fc_norm.value)
    return [whole, each] if pair.reader["norm_before_fc"] else [each]
