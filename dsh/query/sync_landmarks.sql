-- The events of a log after a seq, streamed fragments left out, in order.
-- session: id; after: seq; limit: events
-- → seq, type, time, data (JSON), source_event_seqs (JSON or NULL), surface_op (JSON or NULL)
SELECT seq, type, time, data, source_event_seqs, surface_op FROM event
WHERE session_id = :session AND seq > :after AND type <> 'assistant/chunk' ORDER BY part, seq LIMIT :limit
