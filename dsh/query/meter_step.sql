-- The start of the last step of a session.
-- session: id
-- → seq
SELECT seq FROM event WHERE session_id = :session AND type = 'step/start' AND type <> 'assistant/chunk'
ORDER BY part DESC, seq DESC LIMIT 1
