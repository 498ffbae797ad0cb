-- A range of a session's log, by seq, both ends included.
-- session: id; low, high: seqs
-- → seq, type, time, data (JSON), source_event_seqs (JSON or NULL), surface_op (JSON or NULL)
SELECT seq, type, time, data, source_event_seqs, surface_op
FROM event WHERE session_id = :session AND seq BETWEEN :low AND :high ORDER BY part, seq
