-- Sessions that nothing has happened in since a time, oldest activity first, with what upkeep looks at. Bytes are those of
-- the events that a session wrote itself, as they would be in text.
-- before: epoch ms or NULL; larger: bytes or NULL
-- → id, title, updated_at, pinned (epoch ms or NULL), bytes (NULL unless `larger` is given); pid, boot_id, process_start,
--   heartbeat of its driver, which may be gone (NULL if there is none)
SELECT r.id, (SELECT t.title FROM title t WHERE t.session_id = r.id), r.updated_at, r.pinned, r.bytes,
  l.pid, l.boot_id, l.process_start, l.heartbeat
FROM (
  SELECT s.id, s.updated_at, s.pinned, iif(:larger IS NULL, NULL,
    (SELECT coalesce(sum(octet_length(e.data)), 0) FROM event e WHERE e.session_id = s.id
       AND e.seq >= coalesce((SELECT f.boundary + 1 FROM fork f WHERE f.id = s.id), 0))) AS bytes
  FROM session s
  WHERE :before IS NULL OR s.updated_at < :before) r
LEFT JOIN lease l ON l.session_id = r.id
WHERE :larger IS NULL OR r.bytes > :larger
ORDER BY r.updated_at, r.id
