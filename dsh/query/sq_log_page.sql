-- A range of a session's log in order, without what its chunks hold.
-- session: id; low, high: seqs, both included
-- → seq, type, time, data (JSON; NULL for a chunk), source_event_seqs (JSON or NULL), surface_op (JSON or NULL), span
SELECT seq, type, time, iif(type = 'assistant/chunk', NULL, data), source_event_seqs, surface_op, span
FROM event WHERE session_id = :session AND seq BETWEEN :low AND :high ORDER BY part, seq
