-- When the newest event of a session was logged.
-- session: id
-- → time (epoch ms)
SELECT time FROM event WHERE session_id = :session ORDER BY seq DESC LIMIT 1
