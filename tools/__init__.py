"""What maintainers run: the documentation site, and the export of the models that come with Veil."""
