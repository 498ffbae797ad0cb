-- Where a session's title comes from: the event that gave it, or the first prompt.
-- session: id
-- → seq
SELECT coalesce((SELECT event_seq FROM session_title WHERE session_id = :session),
  (SELECT seq FROM event WHERE session_id = :session AND type = 'user/message' ORDER BY part, seq LIMIT 1), 0)
