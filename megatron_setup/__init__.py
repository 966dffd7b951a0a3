"""From a typed configuration to a running model: rules, provider fields and the ordered steps of the setup."""
