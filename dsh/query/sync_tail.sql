-- The last event of each of these types in a log before a seq, newest first.
-- session: id; below: seq; types: JSON array
-- → seq, type, time, data (JSON)
SELECT e.seq, e.type, e.time, e.data
FROM json_each(:types) t CROSS JOIN event e ON e.session_id = :session AND e.seq = (
  SELECT n.seq FROM event n
  WHERE n.session_id = :session AND n.seq < :below AND n.type = t.value AND n.type <> 'assistant/chunk'
  ORDER BY n.part DESC, n.seq DESC LIMIT 1)
ORDER BY e.seq DESC
