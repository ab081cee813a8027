"""The command line: one command per stage; 0 fine, 1 the answer is "no", 2 the question could not be asked."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from draftproof.errors import ConfigError, DraftproofError

# command: (module with configure(parser) and run(args) -> exit code, the question it answers)
COMMANDS = {
    "preflight": ("draftproof.preflight.command", "Can this machine run the experiment at all?"),
    "validate": (
        "draftproof.checkpoint.validate",
        "Will the engine read this draft as it was trained?",
    ),
    "convert": ("draftproof.checkpoint.convert", "Write the checkpoint that is served, or refuse."),
    "capture": (
        "draftproof.capture.command",
        "What does the target say and feel on these prompts?",
    ),
    "import": (
        "draftproof.capture.importing",
        "Make a capture of hidden states that a training tool has dumped.",
    ),
    "accuracy": ("draftproof.accuracy.command", "How many draft tokens would be accepted?"),
    "serve": ("draftproof.serving.command", "Does the server run with the settings asked for?"),
    "bench": ("draftproof.benchmark.command", "How fast is it, and is the text the same?"),
    "diagnose": ("draftproof.diagnosis.command", "Claimed, offline and served: where is the loss?"),
    "report": ("draftproof.report.command", "Let a person see it: one HTML file."),
    "track": ("draftproof.track.command", "Tell MLflow about the results; safe to repeat."),
}
NO, NOT_ASKED = 1, 2
INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line, like every other error of this program."""

    def error(self, message: str) -> None:  # type: ignore[override]
        """Raise ConfigError instead of printing the usage."""
        raise ConfigError(message, self.prog, f"See {self.prog} --help.")


def top_parser() -> Parser:
    """Return the parser for everything before the command's own arguments."""
    listing = "\n".join(f"  {name:<10} {question}" for name, (_, question) in COMMANDS.items())
    parser = Parser(
        prog="draftproof",
        description="Prove an EAGLE-3 draft before you serve it, and know why when it disappoints.",
        epilog=f"commands:\n{listing}\n\nexample:\n  draftproof validate --draft DIR --target DIR",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-v", "--verbose", action="count", default=0, help="more on stderr; -vv opens the libraries"
    )
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="write what goes to stderr to this file too"
    )
    parser.add_argument(
        "command", choices=COMMANDS, metavar="command", help="one of the commands below"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def configure_logging(verbosity: int, file: Path | None) -> None:
    """Send the story to stderr, and to a file when one is given; the answer alone goes to stdout."""
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(file, mode="w", encoding="utf-8"))
    logging.basicConfig(
        level=logging.INFO if verbosity > 1 else logging.WARNING,
        format="%(asctime)s %(message)s",
        datefmt="%H:%M:%S",
        handlers=handlers,
        force=True,
    )
    logging.getLogger("draftproof").setLevel(logging.DEBUG if verbosity else logging.INFO)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    log = logging.getLogger("draftproof")
    configure_logging(0, None)
    try:
        top = top_parser().parse_args(argv)
        configure_logging(top.verbose, top.log)
        module = importlib.import_module(COMMANDS[top.command][0])
        parser = Parser(
            prog=f"draftproof {top.command}",
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.configure(parser)
        code: int = module.run(parser.parse_args(top.arguments))
    except DraftproofError as error:
        log.error("draftproof: %s", error)
        return NOT_ASKED
    except KeyboardInterrupt:
        log.error("draftproof: stopped by the keyboard")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our stdout (head, less) went away: not an error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.filename is None:
            raise
        log.error(
            "draftproof: %s: %s. Check the path and its permissions.",
            error.filename,
            error.strerror,
        )
        return NOT_ASKED
    return code


if __name__ == "__main__":
    sys.exit(main())
