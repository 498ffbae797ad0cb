-- Which nodes were on a session's surface just before an event.
-- session: id; at: the event's seq
-- → seq
SELECT seq FROM surface_history
WHERE session_id = :session AND seq < :at AND (replaced_by IS NULL OR replaced_by > :at)
