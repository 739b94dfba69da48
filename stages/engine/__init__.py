"""An engine: what a request task talks to. local.py is the stages of this process."""
