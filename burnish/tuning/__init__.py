"""Tuning: `max-autotune` measures the forms in which each kernel can run on the GPU and keeps the fastest.

`schedule/form.py` defines a form; `backend_forms` and `launch_forms` list those of a kernel, the rule's first.
`search.py` selects a form from a record (`record.py`), the cache, or a measurement (`measure.py`), in that order.
"""
