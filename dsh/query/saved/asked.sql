-- What you asked, newest first.
-- :since = today from when on
-- :until = NULL up to when
SELECT datetime(e.time / 1000, 'unixepoch', 'localtime') AS asked, e.session_id || ':' || e.seq AS place,
  coalesce(e.data ->> '$.envelope.displayContent[0].text', e.data ->> '$.content[0].text') AS prompt
FROM session s JOIN event e ON e.session_id = s.id
WHERE s.updated_at >= :since AND s.delegation_depth = 0
  AND e.type IN ('user/message', 'steering/message') AND e.type <> 'assistant/chunk'
  AND e.data ->> '$.source.kind' = 'user' AND e.time >= :since
  AND (:until IS NULL OR e.time <= :until)
  AND e.seq > coalesce((SELECT f.boundary FROM fork f WHERE f.id = s.id), -1)
ORDER BY e.time DESC, e.session_id, e.seq DESC
