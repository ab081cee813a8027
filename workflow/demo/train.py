"""Train the demo's EAGLE-3 draft on the target's own answers and write the checkpoint folder.

Each row is trained for several steps as in EAGLE-3's training-time test: the draft's own hidden state is
fed back with the target's token. The label is the target's distribution over the draft vocabulary, mixed
with the token that the target chose. Later steps take the rows that were right so far, as only those can
be accepted, and a share of the others.

Progress is measured by the walk on held-out prompts (split `tune`); the split `report` is looked at once,
after the export, for the provenance file.

The work is shared by processes of one thread each, which average their gradients once per update: on a
machine that others use too this keeps its pace, where threads would wait for one another at every layer.

Example: python workflow/demo/train.py --max-minutes 45
"""

from __future__ import annotations

import argparse
import logging
import math
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from draft_model import Draft, Rows, initialise_from_target, shape_for
from export import export
from held_out import BOUNDARIES, held_out_batches
from rows import Batch, Recorded, batches, draft_vocabulary, read_shards
from torch import Tensor
from torch.nn import functional
from walk import walk

from draftproof.errors import DraftproofError, InputError, MachineError
from draftproof.files import require_directory

log = logging.getLogger("demo.train")

LOOK_EVERY_S = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What the training depends on, besides the data."""

    seed: int = 1
    epochs: int = 6
    max_minutes: float = 60.0
    workers: int = 2
    rows_per_batch: int = 320  # of one worker
    steps: int = 3
    draft_vocab: int = 4000
    learning_rate: float = 8e-4
    warm_up_steps: int = 60
    weight_decay: float = 0.01
    clip: float = 1.0
    step_weight: float = 0.8  # of each step relative to the one before
    chosen_weight: float = (
        0.3  # of the chosen token in the label; the rest is the target's distribution
    )
    missed_share: float = 0.25  # of the rows that missed earlier, kept for later steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """What the draft borrows from the target: embedding [V, H], head rows [Vd, H], and the vocabulary map."""

    embedding: Tensor
    head: Tensor
    to_target: Tensor  # [Vd]
    to_draft: Tensor  # [V], -1 outside the draft vocabulary


@dataclass(slots=True)
class Course:
    """How far the training has come."""

    seen_rows: int = 0
    updates: int = 0
    epoch: int = 0
    spent_s: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)


def freeze(target: Any, token_ids: Sequence[int]) -> Frozen:
    """Return the target's parts that the training reads."""
    embedding: Tensor = target.model.embed_tokens.weight.detach()
    to_target = torch.tensor(token_ids)
    to_draft = torch.full((embedding.shape[0],), -1)
    to_draft[to_target] = torch.arange(len(token_ids))
    head = target.lm_head.weight.detach()[to_target].clone()
    return Frozen(embedding=embedding, head=head, to_target=to_target, to_draft=to_draft)


def batch_loss(
    draft: Draft, batch: Batch, frozen: Frozen, recipe: Recipe, coin: torch.Generator
) -> tuple[Tensor, list[tuple[int, int]]]:
    """Return the loss, and for every step the rows (right so far and now, all in the first step).

    The second figures count rows whose chosen token is outside the draft vocabulary as misses.
    """
    sequence, position = batch.starts()
    following = frozen.embedding[batch.token_ids.roll(-1, 1)]
    fused, context = draft.context(batch.states, following)
    rows, hidden = Rows(sequence, position, context), fused[sequence, position]
    right = torch.ones(len(sequence), dtype=torch.bool)
    loss = fused.new_zeros(())
    counts = []
    for number in range(recipe.steps):
        fed = batch.token_ids[rows.sequence, rows.position + 1 + number]
        hidden = draft.step(rows, hidden, frozen.embedding[fed], number)
        logits = draft.logits(hidden)
        # The state of the token just fed gives the distribution of the token to guess.
        state = batch.final[rows.sequence, rows.position + 1 + number]
        guess = batch.token_ids[rows.sequence, rows.position + 2 + number]
        label = frozen.to_draft[guess]
        known = label >= 0
        with torch.no_grad():
            soft = (state @ frozen.head.T).softmax(-1).mul_(1 - recipe.chosen_weight)
            extra = known[:, None] * recipe.chosen_weight
            soft.scatter_add_(1, label.clamp(min=0)[:, None], extra)
        each = functional.cross_entropy(logits, soft, reduction="none")
        loss = loss + recipe.step_weight**number * (each * known).sum() / len(sequence)
        right &= logits.argmax(-1) == label
        counts.append((int(right.sum()), len(sequence)))
        kept = right | (torch.rand(len(right), generator=coin) < recipe.missed_share)
        # The next step's token and its guess must both be the target's own.
        at = (rows.position + 3 + number).clamp(max=batch.token_ids.shape[1] - 1)
        inside = rows.position + 3 + number < batch.token_ids.shape[1]
        kept &= inside & batch.chosen[rows.sequence, at]
        rows, hidden, right = rows.keep(kept), hidden[kept], right[kept]
        if not len(right):
            break
    return loss, counts


def learning_rate(recipe: Recipe, updates: int, progress: float) -> float:
    """Return the rate after some updates: a linear warm-up, then a cosine down to 2 percent."""
    warm = min(1.0, (updates + 1) / recipe.warm_up_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return recipe.learning_rate * warm * (0.02 + 0.98 * cosine)


class Trainer:
    """The training loop of one worker; worker 0 keeps the clock, looks at progress and saves."""

    def __init__(
        self, draft: Draft, frozen: Frozen, recipe: Recipe, state_file: Path, worker: int = 0
    ) -> None:
        self.draft, self.frozen, self.recipe = draft, frozen, recipe
        self.state_file, self.worker = state_file, worker
        self.optimizer = torch.optim.AdamW(
            draft.parameters(), betas=(0.9, 0.95), weight_decay=recipe.weight_decay
        )
        self.course = Course()
        self.coin = torch.Generator().manual_seed(recipe.seed * 100 + worker)
        self.best: tuple[float, dict[str, Tensor]] = (0.0, {})

    def run(self, recorded: Sequence[Recorded], watched: Sequence[Batch]) -> None:
        """Train until the epochs or the minutes of the recipe are used up."""
        recipe, course = self.recipe, self.course
        total_rows = recipe.epochs * sum(int(one.generated.sum()) for one in recorded)
        last_s, looked_s = time.monotonic(), course.spent_s
        tally = [[0, 0] for _ in range(recipe.steps)]
        running = 0.0
        for epoch in range(course.epoch, recipe.epochs):
            course.epoch = epoch
            pick = random.Random(recipe.seed * 1000 + epoch)
            for batch in batches(
                recorded, recipe.rows_per_batch, pick, self.worker, recipe.workers
            ):
                now_s = time.monotonic()
                course.spent_s += now_s - last_s
                last_s = now_s
                elapsed = course.spent_s / (60 * recipe.max_minutes)
                progress = max(elapsed, course.seen_rows / total_rows)
                loss, counts, progress = self.update(batch, progress)
                running = 0.97 * running + 0.03 * loss if course.updates > 1 else loss
                for row, (right, rows) in zip(tally, counts, strict=False):
                    row[0], row[1] = row[0] + right, row[1] + rows
                if progress >= 1:
                    return
                if self.worker == 0 and course.spent_s - looked_s > LOOK_EVERY_S:
                    looked_s = course.spent_s
                    self.look(watched, running, progress, tally)
                    tally = [[0, 0] for _ in range(recipe.steps)]
                    last_s = time.monotonic()  # looking costs no training time
        course.epoch = recipe.epochs

    def take_best(self, watched: Sequence[Batch]) -> None:
        """Go back to the weights that did best on the watched prompts, unless the last ones did."""
        self.look(watched, math.nan, 1.0, [])
        self.draft.load_state_dict(self.best[1])

    def update(self, batch: Batch, progress: float) -> tuple[float, list[tuple[int, int]], float]:
        """Make one step of the optimizer.

        Returns the loss and batch_loss's counts of this worker, and the progress as worker 0 sees it.
        """
        self.optimizer.zero_grad()
        loss, counts = batch_loss(self.draft, batch, self.frozen, self.recipe, self.coin)
        loss.backward()  # type: ignore[no-untyped-call]
        rows, progress = self._share(counts[0][1], progress)
        rate = learning_rate(self.recipe, self.course.updates, progress)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        torch.nn.utils.clip_grad_norm_(self.draft.parameters(), self.recipe.clip)
        self.optimizer.step()
        self.course.updates += 1
        self.course.seen_rows += rows
        return float(loss.detach()), counts, progress

    def _share(self, rows: int, progress: float) -> tuple[int, float]:
        """Average the gradients over the workers; returns all workers' rows, worker 0's progress."""
        if self.recipe.workers == 1:
            return rows, progress
        gradients = [weight.grad for weight in self.draft.parameters() if weight.grad is not None]
        clock = progress if self.worker == 0 else 0.0
        shared = torch.cat([*(g.flatten() for g in gradients), torch.tensor([rows, clock])])
        torch.distributed.all_reduce(shared)
        *parts, extra = torch.split(shared, [*(g.numel() for g in gradients), 2])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient) / self.recipe.workers)
        return int(extra[0]), float(extra[1])

    def look(
        self, watched: Sequence[Batch], loss: float, progress: float, tally: list[list[int]]
    ) -> None:
        """Log the walk on the watched prompts, and save the state."""
        found = walk(
            self.draft, watched, self.frozen.embedding, self.frozen.to_target, self.recipe.steps
        )
        if found.accept_length >= self.best[0]:
            weights = {name: weight.clone() for name, weight in self.draft.state_dict().items()}
            self.best = (found.accept_length, weights)
        course = self.course
        course.history.append(
            {
                "minutes": round(course.spent_s / 60, 1),
                "epoch": course.epoch,
                "updates": course.updates,
                "rows": course.seen_rows,
                "loss": None if math.isnan(loss) else round(loss, 4),
                "tune_accept_length": round(found.accept_length, 4),
            }
        )
        log.info(
            "train: %4.1f min (%3.0f %%), epoch %d, update %d, loss %.3f, trained on %s, tune %s, accept length %.3f",
            course.spent_s / 60,
            100 * progress,
            course.epoch + 1,
            course.updates,
            loss,
            "/".join(f"{right / max(1, rows):.3f}" for right, rows in tally),
            "/".join(f"{share:.3f}" for share in found.cumulative),
            found.accept_length,
        )
        self.save()

    def save(self) -> None:
        """Write weights, optimizer and progress, whole or not at all."""
        state = {
            "draft": self.draft.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "coin": self.coin.get_state(),
            "course": {name: getattr(self.course, name) for name in Course.__slots__},
            "to_target": self.frozen.to_target,
        }
        part = self.state_file.with_suffix(".part")
        torch.save(state, part)
        part.replace(self.state_file)

    def load(self) -> None:
        """Take up the saved state."""
        state = torch.load(self.state_file, weights_only=True)
        if not torch.equal(state["to_target"], self.frozen.to_target):
            raise InputError("was saved with other data", str(self.state_file), "Remove it.")
        self.draft.load_state_dict(state["draft"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.coin.set_state(state["coin"])
        for name, value in state["course"].items():
            setattr(self.course, name, value)


def work(worker: int, options: argparse.Namespace, recipe: Recipe) -> None:
    """Train as one worker; worker 0 exports and evaluates at the end."""
    from transformers import AutoModelForCausalLM

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    torch.set_num_threads(1)
    if recipe.workers > 1:
        torch.distributed.init_process_group(
            "gloo",
            init_method=(options.work / "meeting").absolute().as_uri(),
            rank=worker,
            world_size=recipe.workers,
        )
    recorded = read_shards(options.data)
    target = AutoModelForCausalLM.from_pretrained(
        options.target, dtype=torch.float32, local_files_only=True
    ).eval()
    target.requires_grad_(False)
    torch.manual_seed(recipe.seed)
    token_ids = draft_vocabulary(recorded, recipe.draft_vocab, target.config.vocab_size)
    frozen = freeze(target, token_ids)
    draft = Draft(shape_for(target.config, len(BOUNDARIES), recipe.draft_vocab))
    initialise_from_target(draft, target, token_ids)
    trainer = Trainer(draft, frozen, recipe, options.work / "state.pt", worker)
    if options.resume and trainer.state_file.exists():
        trainer.load()
    watched: list[Batch] = []
    if worker == 0:
        log.info(
            "train: %d conversations, %d answer tokens, %.2f million parameters",
            len(recorded),
            sum(int(one.generated.sum()) for one in recorded),
            sum(weight.numel() for weight in draft.parameters()) / 1e6,
        )
        watched = held_out_batches(options.target, target, options.data, "tune")
    trainer.run(recorded, watched)
    if worker == 0:
        trainer.take_best(watched)
        report = held_out_batches(options.target, target, options.data, "report")
        export(trainer.draft, frozen, recipe, trainer.course, options, target, recorded, report)


def train(options: argparse.Namespace) -> None:
    """Start the workers and wait for them."""
    recipe = Recipe(
        seed=options.seed,
        epochs=options.epochs,
        max_minutes=options.max_minutes,
        workers=options.workers,
        rows_per_batch=options.rows_per_batch,
        learning_rate=options.learning_rate,
        draft_vocab=options.draft_vocab,
    )
    require_directory(options.target, "target", "Make it with demo/target.py.")
    require_directory(options.data, "data", "Make it with demo/generate.py.")
    options.work.mkdir(parents=True, exist_ok=True)
    (options.work / "meeting").unlink(missing_ok=True)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read by numpy in the workers
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=work, args=(number, options, recipe))
        for number in range(recipe.workers)
    ]
    for worker in workers:
        worker.start()
    try:
        # One that fails leaves the others waiting for its gradients.
        while any(worker.is_alive() for worker in workers):
            if any(worker.exitcode for worker in workers):
                break
            time.sleep(0.5)
    finally:
        for worker in workers:
            worker.terminate()
    if any(worker.exitcode for worker in workers):
        raise MachineError("a worker failed", "train", "Run again with --resume to go on.")


def main(arguments: list[str] | None = None) -> int:
    """Run the script; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    folder, defaults = Path("results/demo-draft"), Recipe()
    parser.add_argument("--target", type=Path, default=Path("results/models/smollm2-135m-instruct"))
    parser.add_argument("--data", type=Path, default=folder / "data")
    parser.add_argument("--work", type=Path, default=folder / "training", help="for the state")
    parser.add_argument("--out", type=Path, default=Path("workflow/demo/draft"))
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--epochs", type=int, default=defaults.epochs)
    parser.add_argument("--max-minutes", type=float, default=defaults.max_minutes)
    parser.add_argument("--workers", type=int, default=defaults.workers)
    parser.add_argument("--resume", action="store_true", help="go on from the saved state")
    parser.add_argument("--rows-per-batch", type=int, default=defaults.rows_per_batch)
    parser.add_argument("--learning-rate", type=float, default=defaults.learning_rate)
    parser.add_argument("--draft-vocab", type=int, default=defaults.draft_vocab)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        train(options)
    except DraftproofError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
