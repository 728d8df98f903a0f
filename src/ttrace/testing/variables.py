"""Variables by which the options of the pytest plugin reach `assert_equivalent`."""

KEPT = "TTRACE_PYTEST_OUT"  # folder that keeps traces and results, set by --ttrace-out
PAGES = "TTRACE_PYTEST_HTML"  # folder for the report of every test, set by --ttrace-html
