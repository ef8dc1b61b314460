"""The law of this package: a bug that somebody could write stands here in one piece, and tests alone switch it on."""
