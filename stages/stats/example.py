"""Statistics that show together all that there may be, for the document at /openapi.json."""

from attrs import evolve

from stages.inbox import Meter
from stages.messages import Load, Record, RequestRecord, TokenGaps, Usage
from stages.stats.book import Book
from stages.stats.report import statistics_of
from stages.stats.sources import Sources, Watched
from stages.stats.statistics import PromptCache, Speculation, Statistics
from stages.trail import Trail

_UNIX_S = 1_700_000_000.0
_LOAD = Load(1, 1, 20, 3, 8, 1, 2, 64, evictable_pages=1, total_host_pages=8, total_host_snapshots=2)


def example_statistics() -> tuple[Statistics, ...]:
    """Return statistics of an engine and of a renderer, two days after a call, and of one to which nothing came."""
    book = Book(0.0, _UNIX_S)
    trail = Trail("example", "/v1/chat/completions", "openai_chat", "model")
    trail.rendered(20, 0.5)
    trail.admitted(0, Usage(20, 0, cached_tokens=8), 1.0)
    trail.first_token_s = trail.last_token_s = 2.0
    book.ended(trail.record(3.0, is_complete=True), 3.0)
    book.ended(evolve(_refused(trail), status=503, cause="queue_full"), 3.0)
    book.ended(evolve(_refused(trail), outcome="error", status=None), 3.0)
    book.delivered(TokenGaps(2, ((0.5, 1),)), 3.0)
    book.record(Record("steps_decode"), 3.0)
    sources = Sources(
        stages=[Watched("queue", lambda: 0, capacity=8), Watched("scheduler", lambda: 0, [Meter()])],
        live=lambda: (trail, Trail("other")),
        load=lambda: _LOAD,
        max_running=2,
        prompt_cache=lambda: PromptCache(False, "why", 128, 2**20, 0, 3, 1, 900, 300, 1, 1),
    )
    now_s = 86_400.0 * 2
    engine = statistics_of(book, sources, now_s, 0)
    engine = evolve(engine, speculation=Speculation(4, 2, 0.5, 1.5), worker=0)
    sources.role, sources.load = "render", None
    return engine, statistics_of(book, sources, now_s + 1.5, 0), statistics_of(Book(0.0, _UNIX_S), Sources(), 0.5, 0)


def _refused(trail: Trail) -> RequestRecord:
    return evolve(trail.record(3.0, is_complete=True), outcome="refused")
