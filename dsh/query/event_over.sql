-- The event that stands at a seq: its own, or the run of streamed fragments that was thinned.
-- session: id; seq
-- → seq (its first), span
SELECT seq, span FROM event WHERE session_id = :session AND seq <= :seq ORDER BY part DESC, seq DESC LIMIT 1
