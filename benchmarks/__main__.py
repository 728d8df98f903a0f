"""Runs every benchmark, prints the ratios and writes them to benchmarks/results.json."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import capture, check, compare_pass, generate, storage

RESULTS = Path(__file__).with_name("results.json")


def main() -> None:
    results: dict[str, dict[str, object]] = {}
    for benchmark in (storage, compare_pass, generate, capture, check):
        name = benchmark.__name__.rpartition(".")[2]
        print(f"running {name} ...", flush=True)
        results[name] = benchmark.run()
        for key, value in results[name].items():
            print(
                f"  {key:<28} {value:.3f}" if isinstance(value, float) else f"  {key:<28} {value}"
            )
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {RESULTS}")


if __name__ == "__main__":
    main()
