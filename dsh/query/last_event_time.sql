-- When the newest event of a session was logged.
-- session: id
-- → time (epoch ms)
SELECT time FROM event WHERE session_id = :session AND seq = (SELECT length - 1 FROM session WHERE id = :session)
