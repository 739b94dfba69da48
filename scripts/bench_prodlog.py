"""Measures what the production log costs: CPU on the event loop's thread and on its own, bytes a call, and reading.

    python scripts/bench_prodlog.py [CALLS]

CPU time is of each thread, so that other load on the machine matters little.
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from stages.messages import RequestRecord
from stages.stats.prodlog.folder import log_files
from stages.stats.prodlog.journal import Run
from stages.stats.prodlog.reader import read_log
from stages.stats.prodlog.writer import QUEUE_ITEMS, open_prodlog
from trnrt.reporting.columns import Columns
from trnrt.reporting.summary import summarize

CALLS = 100_000
BURST = QUEUE_ITEMS // 4


def record(number: int) -> RequestRecord:
    at_s = 1000.0 + number / 1000
    return RequestRecord(
        request_id=f"{number:032x}",
        route="/v1/chat/completions",
        dialect="openai_chat",
        model="demo",
        is_streamed=True,
        is_constrained=False,
        num_choices=1,
        arrived_unix_s=1.7e9 + number / 1000,
        arrived_s=at_s,
        parsed_s=at_s + 0.000123,
        prompt_ready_s=at_s + 0.001234,
        submitted_s=at_s + 0.001244,
        admitted_s=at_s + 0.0123456,
        first_token_s=at_s + 0.123456,
        last_token_s=at_s + 3.123456,
        ended_s=at_s + 3.2,
        prompt_tokens=12_345,
        cached_device_tokens=12_000,
        cached_host_tokens=0,
        completion_tokens=321,
        reasoning_tokens=123,
        retractions=0,
        outcome="stop",
        status=200,
        cause=None,
    )


def main() -> None:
    num_calls = int(sys.argv[1]) if len(sys.argv) > 1 else CALLS
    folder = Path(tempfile.mkdtemp())
    records = [record(number) for number in range(BURST)]
    log = open_prodlog(folder, 1 << 30, Run("serve"))
    log.start()
    process_began_s, own_began_s = time.process_time(), time.thread_time()
    loop_s = 0.0
    num_offered = 0
    while num_offered < num_calls:
        while log.writer.queue:
            time.sleep(0.01)
        began_s = time.thread_time()
        for one in records:
            log.tap(one)
        loop_s += time.thread_time() - began_s
        num_offered += len(records)
    log.close()
    writer_s = (time.process_time() - process_began_s) - (time.thread_time() - own_began_s)
    size = sum(log_files(folder).values())
    began_s = time.thread_time()
    columns = Columns(10)
    summary = summarize(read_log(folder, columns.take), columns)
    read_s = time.thread_time() - began_s
    assert summary.calls == num_offered
    print(f"{num_offered:,} calls, {log.writer.num_lost} lost")
    print(f"event loop: {loop_s / num_offered * 1e6:.2f} us of CPU a call")
    print(f"own thread: {writer_s / num_offered * 1e6:.1f} us of CPU a call, {size / num_offered:.0f} bytes")
    print(f"report: {read_s / num_offered * 1e6:.1f} us of CPU a call")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
