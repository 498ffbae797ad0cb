-- Every node that was ever on a session's surface.
-- session: id
-- → seq, position, replaced_by (seq, or NULL for a node that is there now)
SELECT seq, position, replaced_by FROM surface_history WHERE session_id = :session ORDER BY seq
