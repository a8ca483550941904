"""Lists of cases as TOML."""
