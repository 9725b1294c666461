"""Traces: the deepest draft tree at every position of a text, so that no decision runs a model.

Under the greedy and the coupled rule the text does not depend on what is drafted, and the draft
state is a function of the committed prefix alone. So one tree per position, grown as deep as any
policy may ask, answers every (depth, size) there.
"""
