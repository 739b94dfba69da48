"""The pipeline, in the order a request meets it; README.md beside this file draws it."""
