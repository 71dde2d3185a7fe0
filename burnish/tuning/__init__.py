"""Tuning: `max-autotune` measures the forms in which each kernel can run on the GPU and keeps the fastest.

`schedule/form.py` is what a form is; `backend_forms` and `launch_forms` list those of a kernel, the rule's first.
`search.py` asks which to take, of a record (`record.py`), of the cache, of a measurement (`measure.py`), in that order.
"""
