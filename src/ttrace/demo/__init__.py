"""A small distributed training job with known bugs, to see TTrace at work and to test it.

    model.py      a Llama-style model, written for one device
    parallel.py   spreads it over a (dp, tp) mesh
    bugs.py       mistakes from real frameworks, each planted by a few lines
    train.py      the training job: python -m ttrace.demo.train --dp 2 --tp 2 --bug row-bias

The rest of the package never imports this one; only train.py knows TTrace, by its three lines.
"""
