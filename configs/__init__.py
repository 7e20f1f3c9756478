"""Which numbers: frozen dataclasses of an experiment and the presets built from them."""
