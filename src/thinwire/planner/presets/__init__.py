"""Hardware presets, as TOML files beside this module."""
