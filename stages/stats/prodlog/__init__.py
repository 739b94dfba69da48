"""The production log: opt-in JSON lines of what was served, counts and times only, never text.

    stats stage --RequestRecord--> ProdLog (bounded queue, lossy, losses counted)
    run_gauges  --Load-----------> ProdLog
                                     `-- own thread: Journal --> one file after the other in the folder

Lines (`lines.py`) go to files that one process alone has opened and nobody opens again for writing: two processes in
one folder never mix lines, and a line that was cut short by a crash is the last of its file. `folder.py` keeps all
files together under their bound; `reader.py` reads them and says what is not there.
"""
