"""One card per served model: architecture, template, parsers, stop ids."""
