-- What is done in the open turn of a session; no row without one.
-- session: id
-- → turn_started_at (epoch ms), last_type, last_chunk (kind of the last event if it is a chunk), and of the last tool
--   call call_name, call_arguments
SELECT turn_started_at, last_type, last_chunk, call_name, call_arguments FROM activity WHERE session_id = :session
