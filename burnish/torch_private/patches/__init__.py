"""Functions of torch that are replaced for a while, with Dynamo's compile lock held where it is not said otherwise.

Where a replacement corrects what Dynamo or AOTAutograd make of a call, `capture/graphs/eager_semantics.py` has the
whole list.
"""
