"""Write the demo draft with a wrong list of layers, or with the line that the wiring scan of that draft names.

The draft was trained on the boundaries 2, 15 and 27 of SmolLM2-135M. Its list, with the embedding captured in front, is cut at
the wrong end: the engine feeds it 0, 2 and 15.

    python workflow/demo/miswired.py --out results/models/demo-miswired
    python workflow/demo/miswired.py --out results/models/demo-corrected --wiring results/demo-miswired/accuracy/wiring.json
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from draftproof.files import read_result, write_text

DRAFT = Path(__file__).parent / "draft"
CUT_AT_THE_WRONG_END = [-1, 1, 14]


def main(arguments: list[str] | None = None) -> int:
    """Write the folder of a draft; exit code 1 when the scan names no config line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--wiring", type=Path, metavar="FILE", help="correct it by this scan")
    args = parser.parse_args(arguments)
    config = json.loads((DRAFT / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = CUT_AT_THE_WRONG_END
    if args.wiring is not None:
        found = read_result(args.wiring, "wiring")
        if not found["significant"] or found["best"]["setting"].startswith("none:"):
            print(f"{args.wiring} names no config line: {found['message']}", file=sys.stderr)
            return 1
        config |= json.loads(f"{{{found['best']['setting']}}}")
    args.out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(DRAFT / "model.safetensors", args.out / "model.safetensors")
    write_text(args.out / "config.json", json.dumps(config, indent=1) + "\n")
    print(f"{args.out}: {json.dumps(config['eagle_config'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
