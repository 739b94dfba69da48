"""The nursery tree of one engine with its whole API.

    serve
    |-- stop signals             the first drains, the second stops at once
    `-- outer nursery            stages; one that ends by itself ends the process
        |-- stats
        |-- detokenizer
        |-- executor -- engine thread -- device
        |-- scheduler
        |-- prompt -- tokenizer thread
        `-- ingress              its own nursery of connections, never the stages' parent

Stop order is the reverse: ingress refuses, the scheduler finishes what it accepted, then the rest is cancelled.
"""
