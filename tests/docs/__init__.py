"""The pages, the examples and the package."""
