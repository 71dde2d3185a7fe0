"""Packs: one file with everything that a compiled object needs, for machines without compiler, Triton or tracing.

    container.py    the file: a manifest and members, each with its size and checksum; nothing in it is trusted
    factors.py      what a pack depends on (versions, processor), and how it is compared with this process
    data.py         a variant as data
    places.py       where guards look: paths into the frame's variables
    guards.py       guards as data, and their evaluation
    guard_texts.py  packing: Dynamo's guards, as the cache has them, become ours
    bytecode.py     packing: Dynamo's code without its loads
    packing.py      `burnish.pack`
    loading.py      `burnish.load`
    serving.py      a variant's graph, served from the pack's libraries
    entrance.py     the entrance of a loaded object

Loading (`loading.py` and what it imports) must not import TorchDynamo: its import alone takes more than a second.
"""
