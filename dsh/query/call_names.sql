-- Which tools were called before an event.
-- session: id; below: seq
-- → call_id, name
SELECT call_id, name FROM tool_call WHERE session_id = :session AND seq < :below
