-- A page of a session's log, in order.
-- session: id; low: first seq; limit: events
-- → seq, type, time, data (JSON), source_event_seqs (JSON or NULL), surface_op (JSON or NULL)
SELECT seq, type, time, data, source_event_seqs, surface_op
FROM event WHERE session_id = :session AND seq >= :low ORDER BY part, seq LIMIT :limit
