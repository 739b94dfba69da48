"""`python -m trnrt [serve|render|compile|simulate|report] [flags]`: argv to an exit code.

What takes a while to import is imported in main, where a signal is an exit code and no traceback.
"""

import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trnrt.starting import end_at, end_if_signalled

if TYPE_CHECKING:
    from trnrt.config import Config
    from trnrt.render_config import RenderConfig

COMMANDS = ("serve", "render", "compile", "simulate", "report")

log = logging.getLogger("trnrt")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code of docs/CONFIGURATION.md."""
    args = list(sys.argv[1:] if argv is None else argv)
    command = args.pop(0) if args and args[0] in COMMANDS else "serve"
    if argv is None:
        # Without a handler SIGTERM does nothing at all to process 1 of a container; Ctrl-C in a simulation is trio's.
        end_at(signal.SIGTERM, *(() if command in ("simulate", "report") else (signal.SIGINT,)))
    # Spinning threads on shared cores collapse; the tokenizer's own pool would take the cores that serve.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from stages.errors import StartupError

    try:
        if command == "simulate":
            from trnrt.simulate import run_simulate

            return run_simulate(args)
        if command == "report":
            from trnrt.report import run_report

            return run_report(args)
        from stages.logs.handler import logging_to
        from trnrt.config import load_config
        from trnrt.render_config import load_render_config

        config = load_render_config(args, os.environ) if command == "render" else load_config(args, os.environ)
        with logging_to(sys.stderr, config.log_level, config.log_format):
            return _run(command, config, args)
    except StartupError as error:
        print(f"trnrt: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _run(command: str, config: "Config | RenderConfig", args: Sequence[str]) -> int:
    from stages.errors import StartupError
    from trnrt.render_config import RenderConfig

    end_if_signalled()
    try:
        if isinstance(config, RenderConfig):
            from trnrt.render import run_render

            return run_render(config, args)
        if command == "compile":
            from trnrt.compile import compile_all

            return compile_all(config)
        from trnrt.serve import run_server

        return run_server(config)
    except StartupError:
        raise
    except Exception:
        log.critical("the process failed", exc_info=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
