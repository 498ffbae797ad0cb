"""The union of the sessions of several machines: what `dsh sync` does.

What is copied is whole logs. A log has one writer and only grows, so of two copies of a session one is the beginning of
the other: what is missing at its end is appended, by the rules of any append. Where neither is, somebody went on with
both; then the one that is there stays, and the other arrives beside it as a session of its own, ID~XXXXXXXX. Both
belong to one *family*, and a log is looked for in the whole family before it counts as new, so that it has one place in
each database, whatever it is called there. What a log says decides, never a clock, a name or who comes first.

A log is named by its length and a digest of its last events (`model.Digest`): equal names are equal logs, and nothing
is transferred. Streamed fragments do not count for it, nor does a text that was redacted: thinning and redacting leave
a log what it is, and each machine does them for itself.

`copying.copy` goes from one place to another; `here` is a database, `folder` a folder of files, `remote` the dsh of
another machine.
"""
