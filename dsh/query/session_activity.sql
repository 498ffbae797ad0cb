-- Whether a session is at work, and who would do it.
-- session: id
-- → length, open_turn, waking (messages in the inbox that start or end a turn), waiting (messages, which cancels are
--   not), and the lease's holder, pid, boot_id, process_start, heartbeat (NULL without one)
SELECT s.length, s.open_turn,
  (SELECT count(*) FROM inbox i WHERE i.session_id = s.id AND i.route IN ('followup', 'steer', 'cancel')),
  (SELECT count(*) FROM inbox i WHERE i.session_id = s.id AND i.route <> 'cancel'),
  l.holder, l.pid, l.boot_id, l.process_start, l.heartbeat
FROM session s LEFT JOIN lease l ON l.session_id = s.id WHERE s.id = :session
