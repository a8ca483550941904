"""Public model configs as facts, so that nothing needs a hub."""
