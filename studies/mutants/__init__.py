"""How many small changes to the sources does each tier of tests notice?

`plant` writes a copy of the repository in which all mutants stand beside the original code, each
behind a switch; `reached` is a plugin of pytest that notes which test comes to which of them; then
`run` switches one after the other on and runs the tests that reach it, cheapest first, until one
fails.
"""
