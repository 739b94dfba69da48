"""Processes that are killed while they write: two at a time in one folder, at any byte, and a clean read after all."""

import random
import subprocess
import sys
from pathlib import Path

from stages.stats.prodlog.lines import RequestLine
from tests.stages.stats.prodlog.kit import AT_S, read

ROUNDS = 25

# Writes come a few bytes at a time, so that the end can come between any two of them. Each process numbers its requests
# by seconds from 0, and says how many it has offered in a file of its own.
KILLED_OVER_AND_OVER = """
import os, random, signal, sys, time
from pathlib import Path
from stages.stats.prodlog.journal import Run
from stages.stats.prodlog.writer import open_prodlog
import stages.stats.prodlog.writer as writer
from tests.stages.stats.prodlog.kit import record

path, rounds, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
choose = random.Random(seed)
write = os.write
writer.GATHER_S = 0.001

def logs(run, piece):

    def write_some(descriptor, data):
        time.sleep(0.0002)  # the end comes here as a rule
        return write(descriptor, data[:piece])

    os.write = write_some
    log = open_prodlog(path, 1 << 20, Run("serve", id=run))
    log.start()
    number = 0
    while True:
        log.tap(record(number))
        number += 1
        if number % 20 == 0:
            time.sleep(0.0005)

for turn in range(rounds):
    processes = []
    for which in range(2):
        process = os.fork()
        if not process:
            logs(f"{turn:04x}{which:04x}", choose.randrange(1, 900))
        choose.random()
        processes.append(process)
    time.sleep(choose.uniform(0.02, 0.1))
    for process in processes:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
"""


def test_whoever_is_killed_loses_its_torn_last_line_and_what_it_had_not_written_yet_and_nobody_else_anything(
    tmp_path: Path,
):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")  # shown where it fails

    subprocess.run([sys.executable, "-c", KILLED_OVER_AND_OVER, str(tmp_path), str(ROUNDS), str(seed)], check=True)

    got = read(tmp_path)
    files = got.log.files
    assert sum(bool(file.torn_bytes) for file in files) > ROUNDS / 10
    assert got.log.num_missing_between == 0
    assert sum(file.num_unreadable + file.num_missing + file.num_wrong_fields for file in files) == 0
    assert {file.ending for file in files} <= {"closed", "cut short"}
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 1 << 20
    assert len({file.run for file in files}) > ROUNDS / 3
    # Of every file whose beginning is not gone, each line is the one after the line before it.
    for file in files:
        lines = read(tmp_path / file.name).of(RequestLine)
        seconds = [line.at_s - AT_S for line in lines]
        assert seconds == [seconds[0] + index for index in range(len(seconds))] if seconds else True
