"""Make the demo draft's training data: the target's own greedy answers, with its hidden states.

Data appear in shards as they are made; a second run of the same command goes on where the first was
stopped. A shard holds whole conversations one after the other: `token_ids`, `generated` (true where the
target chose the token), `lengths`, and `states` (float16: the three boundaries, then the state after the
final norm).

Example: python workflow/demo/generate.py --target results/models/smollm2-135m-instruct
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from prompts import TrainingPrompt, check_apart, training_prompts
from rollout import Conversation, Rollout, Sample
from safetensors import safe_open
from safetensors.torch import save_file

from draftproof.errors import DraftproofError, InputError, MachineError
from draftproof.files import digest, read_json, require_directory, sha256, write_text

log = logging.getLogger("demo.generate")

BOUNDARIES = (2, 15, 27)  # SGLang's default for a target of 30 layers: 2, N // 2, N - 3
SHARD_TOKENS = 15_000
MANIFEST = "manifest.json"


def conversation(tokenizer: Any, prompt: TrainingPrompt) -> Conversation:
    """Return the prompt as token ids; later turns hold what the chat template puts around them."""
    first = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt.turns[0]}],
        add_generation_prompt=True,
        return_dict=False,
    )
    follow_ups = []
    for turn in prompt.turns[1:]:
        text = f"\n<|im_start|>user\n{turn}<|im_end|>\n<|im_start|>assistant\n"
        follow_ups.append(tuple(tokenizer.encode(text, add_special_tokens=False)))
    return Conversation(id=prompt.id, first=list(first), follow_ups=tuple(follow_ups))


def shard_ids(path: Path) -> list[str]:
    """Return the ids of the conversations in a shard."""
    with safe_open(path, "pt") as shard:
        ids: list[str] = json.loads(shard.metadata()["ids"])
    return ids


def write_shard(path: Path, samples: Sequence[Sample]) -> None:
    """Write samples as one shard; the file appears whole."""
    tensors = {
        "token_ids": torch.cat([sample.token_ids for sample in samples]).int(),
        "generated": torch.cat([sample.generated for sample in samples]),
        "states": torch.cat([sample.states for sample in samples]),
        "lengths": torch.tensor([len(sample.token_ids) for sample in samples]),
    }
    part = path.with_name(f".{path.name}.part")
    save_file(tensors, part, {"ids": json.dumps([sample.id for sample in samples])})
    part.replace(path)


def prepare(folder: Path, settings: dict[str, Any]) -> set[str]:
    """Return the ids already made; raises InputError for a folder with data of other settings."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = folder / MANIFEST
    if manifest.exists() and (found := read_json(manifest)["settings"]) != settings:
        changed = sorted(key for key in settings if found.get(key) != settings[key])
        raise InputError(
            f"holds data made with other settings ({', '.join(changed)})",
            str(folder),
            "Remove the folder or choose another --out.",
        )
    write_text(manifest, json.dumps({"settings": settings}, indent=1) + "\n")
    return {name for path in folder.glob("shard-*.safetensors") for name in shard_ids(path)}


def settings_of(options: argparse.Namespace, prompts: Sequence[TrainingPrompt]) -> dict[str, Any]:
    """Return what the data depend on; data of other settings are not mixed with these."""
    return {
        "seed": options.seed,
        # The count is left out: more prompts of the same seed can be added later.
        "prompts_digest": digest([prompt.turns for prompt in prompts[:500]]),
        "max_new_tokens": options.max_new_tokens,
        "boundaries": list(BOUNDARIES),
        "target_sha256": sha256(options.target / "model.safetensors"),
    }


def work(worker: int, options: argparse.Namespace, prompts: Sequence[TrainingPrompt]) -> None:
    """Make one worker's conversations, on one thread, and write its shards."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    torch.set_num_threads(1)
    started_s = time.monotonic()
    tokenizer = AutoTokenizer.from_pretrained(options.target, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(
        options.target, dtype=torch.float32, local_files_only=True
    ).eval()
    rollout = Rollout(
        model,
        BOUNDARIES,
        eos_token_id=tokenizer.eos_token_id,
        slots=options.slots,
        max_new_tokens=options.max_new_tokens,
    )
    number = len(list(options.out.glob(f"shard-{worker}-*.safetensors")))
    samples: list[Sample] = []
    finished = answer_tokens = 0
    queue = [conversation(tokenizer, prompt) for prompt in prompts]
    for sample in rollout.run(queue, deadline_s=started_s + options.max_minutes * 60):
        samples.append(sample)
        answer_tokens += int(sample.generated.sum())
        if sum(len(one.token_ids) for one in samples) >= SHARD_TOKENS:
            write_shard(options.out / f"shard-{worker}-{number:04d}.safetensors", samples)
            finished, number, samples = finished + len(samples), number + 1, []
            log.info(
                "generate: worker %d, %d of %d conversations, %d answer tokens, %.0f tokens/s",
                *(worker, finished, len(prompts), answer_tokens),
                answer_tokens / (time.monotonic() - started_s),
            )
    if samples:
        write_shard(options.out / f"shard-{worker}-{number:04d}.safetensors", samples)


def generate(options: argparse.Namespace) -> None:
    """Make the data that the options ask for, one process per worker.

    Processes of one thread each keep their pace when the machine is shared; threads of one process wait
    for one another at every layer.
    """
    require_directory(options.target, "target", "Make it with demo/target.py.")
    prompts = training_prompts(options.prompts, options.seed)
    check_apart(prompts)
    done = prepare(options.out, settings_of(options, prompts))
    missing = [prompt for prompt in prompts if prompt.id not in done]
    log.info("generate: %d conversations there, %d to make", len(done), len(missing))
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read by numpy in the workers
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=work, args=(number, options, missing[number :: options.workers]))
        for number in range(options.workers)
    ]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
    finally:
        for worker in workers:
            worker.terminate()
    if any(worker.exitcode for worker in workers):
        raise MachineError("a worker failed", "generate", "Run the command again to go on.")


def main(arguments: list[str] | None = None) -> int:
    """Run the script; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    models = Path("results/models/smollm2-135m-instruct")
    parser.add_argument("--target", type=Path, default=models)
    parser.add_argument("--out", type=Path, default=Path("results/demo-draft/data"))
    parser.add_argument("--prompts", type=int, default=3000, help="conversations to make")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="per answer")
    parser.add_argument(
        "--slots", type=int, default=128, help="conversations at a time, per worker"
    )
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--max-minutes", type=float, default=float("inf"), help="start no more after this time"
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        generate(options)
    except DraftproofError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
