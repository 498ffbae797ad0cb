-- Who drives a session.
-- session: id
-- → holder, pid, boot_id, process_start, heartbeat (epoch ms)
SELECT holder, pid, boot_id, process_start, heartbeat FROM lease WHERE session_id = :session
