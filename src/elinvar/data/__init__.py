"""From text to microbatches: the same ones, in the same order, whoever computes them.

    source.py    documents of a file, a JSON-lines file or the embedded corpus, strictly read
    tokenize.py  byte-level BPE and bytes; text to ids and back without loss
    layout.py    the files of a store folder and their digests
    build.py     writes a store folder, all at once or not at all
    cache.py     where stores are kept between runs
    store.py     the tokens of a data set, checked and memory-mapped
    split.py     which windows are held out, by arithmetic
    order.py     position -> sample, a keyed bijection of every epoch, and back
    cursor.py    the next position
    batch.py     a microbatch: tokens, weights, occurrences, seed
    inspect.py   looks through a whole store
    feed.py      microbatch (step, index) as a pure function, and the held-out ones
    prefetch.py  the same microbatches from worker processes, under a budget of bytes
    worker.py    what an input worker does

Nothing here imports torch, so that input workers start fast and stay small.
"""
