"""Pure functions on arrays. They know neither threads nor clocks: the loop wraps each call in one
span.
"""
