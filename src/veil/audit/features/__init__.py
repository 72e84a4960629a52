"""Audits of features: one question in each file, put to features before or after anonymization."""
