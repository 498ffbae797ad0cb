-- What people read of a session's log: every event but the chunks, by seq, both ends included.
-- session: id; low, high: seqs
-- → seq, type, time, data (JSON)
SELECT seq, type, time, data FROM event
WHERE session_id = :session AND type <> 'assistant/chunk' AND seq BETWEEN :low AND :high ORDER BY part, seq
