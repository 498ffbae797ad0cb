-- The latest request header of a session (SE-31).
-- session: id
-- → seq, header (JSON)
SELECT seq, header FROM request_header WHERE session_id = :session ORDER BY seq DESC LIMIT 1
