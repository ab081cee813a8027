"""Start one server, check that it runs with the settings asked for, run a command on it, stop it.

The engine's log goes to OUT/server.log, what was started and what was read back to OUT/launch.json, which appears when
the server is ready. The exit code is the command's own; 1 when --preflight says no; 2 when the server does not get
ready or dies, with the engine's own reason. Without a command the server stays up until Ctrl-C. However this ends (a
signal, kill -9, the death of --owner), no process of the server or of the command stays behind.

The arm capture serves the target without a draft and hands out its hidden states: those that the draft of --validation
reads, and those its wiring may be confused with.

example:
  draftproof serve --server spec --arm spec --target models/target --draft models/draft --device cpu --out serving/spec
    --flags '{"speculative-num-steps": 3, "speculative-eagle-topk": 1, "speculative-num-draft-tokens": 4}'
    -- draftproof bench --launch serving/spec/launch.json ...
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from draftproof.checkpoint.boundaries import engine_ids, layer_count, target_architecture
from draftproof.checkpoint.configuration import read_config
from draftproof.engines import DEFAULT_ENGINE
from draftproof.errors import ConfigError
from draftproof.files import read_result, require_directory
from draftproof.serving.launch import launched, run_command, wait_for_signal
from draftproof.serving.plan import ARMS, DEVICES, Flag, make_plan
from draftproof.serving.port import free_port, require_free
from draftproof.serving.process import Stopped, owner_watch, stopped_by_signals

READY_TIMEOUT_S = 1800.0
COMMAND_GRACE_S = 10.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        "--server", required=True, metavar="NAME", help="name of this launch configuration"
    )
    parser.add_argument("--arm", required=True, choices=ARMS)
    parser.add_argument("--target", required=True, type=Path, metavar="DIR")
    parser.add_argument("--draft", type=Path, metavar="DIR", help="used by the speculative arms")
    parser.add_argument(
        "--validation", type=Path, metavar="FILE", help="what validate wrote; for the arm capture"
    )
    parser.add_argument("--engine", default=DEFAULT_ENGINE, help="default: %(default)s")
    parser.add_argument("--device", required=True, choices=DEVICES)
    parser.add_argument(
        "--flags",
        default="{}",
        metavar="JSON",
        help="flags of the engine, without dashes; true for a bare one",
    )
    parser.add_argument(
        "--environment", default="{}", metavar="JSON", help="variables of the server"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--port", type=int, help="default: a free one")
    parser.add_argument(
        "--python",
        default=os.environ.get("DRAFTPROOF_ENGINE_PYTHON", sys.executable),
        help="the Python that has the engine; default: $DRAFTPROOF_ENGINE_PYTHON, or this one",
    )
    parser.add_argument(
        "--preflight",
        type=Path,
        metavar="FILE",
        help="answer of `draftproof preflight`; nothing is started when it is no",
    )
    parser.add_argument("--owner", type=int, metavar="PID", help="stop when this process ends")
    parser.add_argument(
        "--ready-timeout",
        type=float,
        default=READY_TIMEOUT_S,
        metavar="S",
        help="default: %(default).0f",
    )
    parser.add_argument(
        "command", nargs="*", metavar="COMMAND", help="after --; run while the server is up"
    )


def run(args: argparse.Namespace) -> int:
    """Serve as asked; return the command's exit code, or 128 + n after signal n."""
    flags = json_object(args.flags, "--flags", (str, int, float, bool))
    port = flags.pop("port", args.port)
    plan = make_plan(
        server=args.server,
        arm=args.arm,
        engine=args.engine,
        device=args.device,
        target=args.target,
        draft=args.draft,
        flags=flags,
        environment=json_object(args.environment, "--environment", (str,)),
        layer_ids=layer_ids(args),
    )
    if failed := failed_checks(args.preflight) if args.preflight else []:
        print("\n".join(failed), file=sys.stderr)
        return 1
    owner = owner_watch(args.owner)
    try:
        with (
            stopped_by_signals(),
            launched(
                plan,
                out=args.out,
                port=free_port() if port is None else require_free(whole_port(port)),
                python=args.python,
                owner=owner,
                ready_timeout_s=args.ready_timeout,
            ) as launch,
        ):
            if args.command:
                return run_command(launch, args.command, COMMAND_GRACE_S)
            print(launch.record["url"], flush=True)
            wait_for_signal(launch)
    except Stopped as stopped:
        return stopped.exit_code
    return 0


def layer_ids(args: argparse.Namespace) -> list[int]:
    """Return the engine's ids of the hidden states that the arm capture hands out, none for other arms."""
    if args.arm != "capture":
        if args.validation is not None:
            raise ConfigError("is for the arm capture", "--validation", "Leave it out.")
        return []
    if args.validation is None:
        raise ConfigError("arm capture needs --validation FILE", f"server {args.server}")
    from draftproof.capture.boundaries import served_boundaries

    config = read_config(require_directory(args.target, "target"), "target")
    architecture, layers = target_architecture(config), layer_count(config)
    validation = read_result(args.validation, "validation")
    where = str(args.validation)
    wanted = served_boundaries(validation, args.engine, architecture, layers, where)
    return engine_ids(args.engine, architecture, wanted)


def failed_checks(preflight: Path) -> list[str]:
    """Return one line per check of preflight.json that failed; raises InputError when it cannot be read."""
    checks = read_result(preflight, "preflight")["checks"]
    return [
        f"{preflight}: {check['id']}: {check['message']}. {check['fix']}".rstrip()
        for check in checks
        if check["status"] == "fail"
    ]


def json_object(text: str, name: str, kinds: tuple[type, ...]) -> dict[str, Any]:
    """Return a JSON object given on the command line; raises ConfigError when it is none, or a value is of another kind."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"not JSON ({error})", name, "Write it as '{\"name\": value}'.") from None
    if not isinstance(value, dict):
        raise ConfigError(
            f"expected an object, found {type(value).__name__}",
            name,
            "Write it as '{\"name\": value}'.",
        )
    for key, each in value.items():
        if not isinstance(each, kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise ConfigError(
                f"{key} is {json.dumps(each)}", name, f"Give a value of type {wanted}."
            )
    return value


def whole_port(value: Flag) -> int:
    """Return a port number; raises ConfigError when it is none."""
    if isinstance(value, bool) or not str(value).isdigit() or not 0 < int(value) < 65536:
        raise ConfigError(f"{value!r} is no port", "port", "Give a number from 1 to 65535.")
    return int(value)
