"""Every private name of torch that burnish uses: the one package that says them.

A private name is one with a leading underscore somewhere in its path (`torch._dynamo.guards.GuardBuilder`), or such an
attribute of an object of torch (`tensor._version`). The next release of torch may move any of them. So each is a line
of a table here: where it is, what it is for, in which versions it was seen and what is done without it.

- `names.py`: a line of the table, and how it is looked up.
- `dynamo.py`, `guards.py`, `variables.py`, `aot.py`, `inductor.py`, `dispatch.py`, `operators.py`, `tensors.py`,
  `fake_tensors.py`, `graphs.py`, `modules.py`, `marks.py`, `cuda.py`, `replaced.py`: the tables, one for each
  neighbourhood of torch. The rest of burnish imports names from there. A name is looked up when it is first asked for,
  so that a table by itself imports nothing.
- `quiet.py`, `shield.py`, `patches/`: what replaces a function of torch for a while.
- `versions.py`: which versions of torch are known. A new one is added there.
- `probe.py`: which names the running torch lacks.
"""
