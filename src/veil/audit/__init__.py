"""Audits of anonymizers: evaluators of utility and leakage, the runner, its cache and the report."""
