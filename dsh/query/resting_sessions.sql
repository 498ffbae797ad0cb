-- Sessions that nothing has happened in since a time and that nobody drives, oldest activity first, with what upkeep
-- looks at. Bytes are those of the events that a session wrote itself, as they would be in text.
-- before: epoch ms or NULL; larger: bytes or NULL
-- → id, title, updated_at, pinned (epoch ms or NULL), bytes (NULL unless `larger` is given)
SELECT r.id, (SELECT t.title FROM title t WHERE t.session_id = r.id), r.updated_at, r.pinned, r.bytes
FROM (
  SELECT s.id, s.updated_at, s.pinned, iif(:larger IS NULL, NULL,
    (SELECT coalesce(sum(octet_length(e.data)), 0) FROM event e WHERE e.session_id = s.id
       AND e.seq >= coalesce((SELECT f.boundary + 1 FROM fork f WHERE f.id = s.id), 0))) AS bytes
  FROM session s
  WHERE (:before IS NULL OR s.updated_at < :before) AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.session_id = s.id)) r
WHERE :larger IS NULL OR r.bytes > :larger
ORDER BY r.updated_at, r.id
