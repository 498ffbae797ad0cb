-- Failures of turns and tools by code, with where each was met last.
-- :since = 30d from when on
WITH failure(of, code, at, place) AS (
  SELECT 'turn', coalesce(t.reason ->> '$.failure.code', t.reason ->> '$.code', t.outcome), t.ended_at,
    t.session_id || ':' || t.end_seq
  FROM turn t WHERE t.outcome NOT IN ('completed', 'max-tokens') AND t.ended_at >= :since
    AND t.start_seq > coalesce((SELECT f.boundary FROM fork f WHERE f.id = t.session_id), -1)
  UNION ALL
  SELECT c.name, coalesce(c.error_code, 'no code'), e.time, c.session_id || ':' || c.result_seq
  FROM session s JOIN tool_call c ON c.session_id = s.id
    JOIN event e ON e.session_id = c.session_id AND e.seq = c.result_seq
  WHERE s.updated_at >= :since AND c.is_error = 1 AND e.time >= :since
    AND c.seq > coalesce((SELECT f.boundary FROM fork f WHERE f.id = s.id), -1)
)
SELECT of, code, count(*) AS times, datetime(max(at) / 1000, 'unixepoch', 'localtime') AS last, place
FROM failure GROUP BY of, code ORDER BY times DESC, of, code
