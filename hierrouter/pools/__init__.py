"""Pool files that come with the package, one TOML file a pool."""
