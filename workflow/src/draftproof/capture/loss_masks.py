"""Which tokens did the target say itself? The prepared dataset of speculators says it, row by row, in Arrow files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof.errors import InputError
from draftproof.files import read_json

if TYPE_CHECKING:
    from torch import Tensor

STATE = "state.json"  # names the Arrow files of a dataset saved to disk, in order


class LossMasks:
    """The columns input_ids and loss_mask of a dataset; the files are mapped, not read."""

    def __init__(self, directory: Path) -> None:
        import pyarrow as pa

        self.directory = directory
        names = [file["filename"] for file in read_json(directory / STATE).get("_data_files", [])]
        tables = []
        try:
            for name in names:
                tables.append(pa.ipc.open_stream(pa.memory_map(str(directory / name))).read_all())
            table = pa.concat_tables([each.select(["input_ids", "loss_mask"]) for each in tables])
        except (OSError, pa.ArrowException, KeyError, TypeError) as error:
            raise InputError(
                f"is no prepared dataset with input_ids and loss_mask ({str(error)[:200]})",
                str(directory),
                "Give the folder that speculators' prepare_data wrote.",
            ) from None
        self.ids, self.masks = table.column("input_ids"), table.column("loss_mask")

    def of(self, row: int, token_ids: Tensor, path: Path) -> Tensor:
        """Return bool [T], the loss mask of a row; raises InputError when the row holds other tokens."""
        import torch

        if not 0 <= row < len(self.ids):
            raise InputError(
                f"row {row} is not in the dataset, which has {len(self.ids)}", str(path)
            )
        ids: Any = self.ids[row].as_py()
        if ids != token_ids.tolist():
            raise InputError(
                f"its tokens are not those of row {row} of the dataset",
                str(path),
                f"Give the dataset that it was made from with --dataset, not {self.directory}.",
            )
        return torch.tensor(self.masks[row].as_py(), dtype=torch.bool)


def loss_masks(dump: Path, dataset: Path | None) -> LossMasks | None:
    """Return the masks of a dump: of the dataset given, or of the folder that the dump lies in; None without either."""
    if dataset is not None:
        return LossMasks(dataset)
    beside = (dump, dump.parent)
    return next((LossMasks(folder) for folder in beside if (folder / STATE).is_file()), None)
