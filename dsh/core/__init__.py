"""The vocabulary every turn moves around: JSON values, blocks, messages, chunks, events, requests, ids, errors.

Wire shapes are plain JSON objects described by `TypedDict`s, not classes: what a provider or an older log put into
them and we do not know survives untouched (CO-3), and no decoding library is loaded at start-up.
"""
