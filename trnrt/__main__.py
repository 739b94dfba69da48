"""`python -m trnrt [serve|render|compile|simulate] [flags]`: argv to Config to one nursery tree to an exit code."""

import logging
import os
import signal
import sys
from collections.abc import Sequence

from stages.errors import StartupError
from trnrt.config import HttpConfig, load_config
from trnrt.render_config import load_render_config

COMMANDS = ("serve", "render", "compile", "simulate")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code of docs/CONFIGURATION.md."""
    if argv is None:
        # Loading can be long, and without a handler SIGTERM does nothing at all to process 1 of a container.
        signal.signal(signal.SIGTERM, _stop_starting)
    args = list(sys.argv[1:] if argv is None else argv)
    command = args.pop(0) if args and args[0] in COMMANDS else "serve"
    # Spinning threads on shared cores collapse; the tokenizer's own pool would take the cores that serve.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        if command == "simulate":
            from trnrt.simulate import run_simulate

            return run_simulate(args)
        if command == "render":
            from trnrt.render import run_render

            render_config = load_render_config(args, os.environ)
            _log_from(render_config)
            return run_render(render_config, args)
        config = load_config(args, os.environ)
        _log_from(config)
        if command == "compile":
            from trnrt.compile import compile_all

            return compile_all(config)
        from trnrt.serve import run_server

        return run_server(config)
    except StartupError as error:
        print(f"trnrt: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _log_from(config: HttpConfig) -> None:
    level = config.log_level.upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)


def _stop_starting(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
