"""Questions put to an anonymizer: what can still be done with its output, and what can still be learned of people."""
