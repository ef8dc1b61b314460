"""Mutation testing of the rules: change one place of the code, and see whether a test fails.

`changes` finds what can be changed, `swap` puts one change into the running functions, `runner` tries the changes one
by one, each in a forked process, with the tests that run the changed lines, and `known` reads the list of survivors.
`make mutate` starts all of it.  The tests that it runs are those of the suite, and `short_simulator`.

No library does this.  mutmut wraps each function in another one: the fingerprints of the simulator do not know these
frames, properties are left out, and no change removes a statement or negates a condition.  Cosmic Ray starts pytest
anew for each change, which takes longer than most of the tests here, and removes no statement either.
"""
