-- Sessions that a process has leased, with `all` also those with messages that nobody has taken up; oldest lease first.
-- A cancel that its driver did not live to obey is no message.
-- all: 0 or 1
-- → id, title, cwd, model, open_turn, waiting (messages), sent_at (of the oldest), since (of the lease), and the
--   lease's pid, boot_id, process_start, heartbeat (NULL without one); times in epoch ms
SELECT s.id, (SELECT t.title FROM title t WHERE t.session_id = s.id), s.cwd,
  (SELECT e.data ->> '$.header.config.model' FROM event e WHERE e.session_id = s.id AND e.type = 'request/header'
     AND e.type <> 'assistant/chunk' ORDER BY e.part DESC, e.seq DESC LIMIT 1),
  s.open_turn,
  (SELECT count(*) FROM inbox i WHERE i.session_id = s.id AND i.route <> 'cancel'),
  (SELECT min(i.sent_at) FROM inbox i WHERE i.session_id = s.id AND i.route <> 'cancel'),
  w.since, w.pid, w.boot_id, w.process_start, w.heartbeat
FROM (
  SELECT session_id, since, pid, boot_id, process_start, heartbeat FROM lease
  UNION ALL SELECT DISTINCT i.session_id, NULL, NULL, NULL, NULL, NULL FROM inbox i
    WHERE :all AND i.route <> 'cancel' AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.session_id = i.session_id)) w
CROSS JOIN session s ON s.id = w.session_id
ORDER BY w.since IS NULL, w.since, s.id
