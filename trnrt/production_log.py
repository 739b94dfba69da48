"""The production log of a server of either role, where --prod-dir asks for one."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from stages.errors import ConfigError
from stages.messages import Load
from stages.stats.prodlog.journal import Run
from stages.stats.prodlog.writer import open_prodlog, run_gauges
from stages.stats.stage import Stats
from trnrt.config import HttpConfig
from trnrt.running import package_version
from trnrt.supervise import contained

MIB = 1 << 20


def check_production_log(config: HttpConfig) -> None:
    """Raise ConfigError for a --prod-dir that never can be a folder; one that only fails now may work later."""
    if config.prod_dir is None:
        return
    if not config.prod_dir:
        raise ConfigError("--prod-dir: expected a folder, got ''")
    if Path(config.prod_dir).exists() and not Path(config.prod_dir).is_dir():
        raise ConfigError(f"--prod-dir: {config.prod_dir} is not a folder")


@asynccontextmanager
async def production_log(
    config: HttpConfig, role: str, model: str, stats: Stats, load: Callable[[], Load | None]
) -> AsyncIterator[None]:
    """Log what happens in the block, if that was asked for; at its end all of it is written."""
    if config.prod_dir is None:
        yield
        return
    run = Run(role, model=model, version=package_version())
    prodlog = open_prodlog(Path(config.prod_dir), config.prod_max_mb * MIB, run)
    prodlog.start()
    stats.taps.append(prodlog.tap)
    stats.sources.lost["production_log"] = lambda: prodlog.writer.num_lost
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(contained(run_gauges, "gauges"), load, lambda: stats.send.num_lost, prodlog)
            yield
            nursery.cancel_scope.cancel()
    finally:
        stats.taps.remove(prodlog.tap)
        prodlog.close()
