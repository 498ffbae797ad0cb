-- The last end of a turn below a seq.
-- session: id; below: seq
-- → seq, or NULL
SELECT max(seq) FROM event WHERE session_id = :session AND type = 'turn/end' AND type <> 'assistant/chunk' AND seq < :below
