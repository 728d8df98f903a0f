"""Which tests a tier runs, what they cost, and what occurs in them; tests/README.md has the rules.

`selection` chooses flows, by pure functions of what was recorded and of the date. `records` reads
and writes what was recorded of every flow: seconds of CPU, and what occurred in it (its facets),
which `facets` collects while it runs. `watching` measures a test with its processes and sees
whether it starts any. `plugin` has the hooks of pytest that put these together, and `closing` the
last lines of a gate.
"""
