-- The latest request header of a session (SE-31).
-- session: id
-- → seq, header (JSON)
SELECT seq, data -> 'header' FROM event
WHERE session_id = :session AND type = 'request/header' AND type <> 'assistant/chunk'
ORDER BY part DESC, seq DESC LIMIT 1
