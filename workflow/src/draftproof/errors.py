"""What a command says when the question could not be asked (exit code 2).

DraftproofError        one line: where, what, fix
    ConfigError        change the experiment file or the command line
    InputError         change or fetch a file: draft, target, samples, an earlier result
    MachineError       change the machine: driver, image, port, disk, missing program
    EngineError        the server refused, died or answered nonsense

A "no" (errors found in a checkpoint, gate not met) is a result, not an exception: exit code 1.
"""


class DraftproofError(Exception):
    """A failure that a person can act on; printed as ``where: what. fix`` without a traceback."""

    def __init__(self, what: str, where: str = "", fix: str = "") -> None:
        # Positional arguments keep the error picklable between processes.
        super().__init__(what, where, fix)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        """Return the one line a person reads."""
        head = f"{self.where}: {self.what}" if self.where else self.what
        line = head if head.endswith((".", "?", "!")) else f"{head}."
        return f"{line} {self.fix}".rstrip() if self.fix else line


class ConfigError(DraftproofError):
    """The experiment file or the command line is wrong."""


class InputError(DraftproofError):
    """A file is missing, unreadable or not what it should be."""


class MachineError(DraftproofError):
    """The machine cannot run this: driver, port, disk, missing program."""


class EngineError(DraftproofError):
    """The server refused to start, died or answered nonsense; `what` quotes its own words."""
