-- The tools that fail most, how often, and with what most of the time.
-- :since = 30d from when on
WITH call(name, is_error, error_code) AS (
  SELECT c.name, c.is_error, c.error_code
  FROM session s JOIN tool_call c ON c.session_id = s.id JOIN event e ON e.session_id = c.session_id AND e.seq = c.seq
  WHERE s.updated_at >= :since AND e.time >= :since
    AND c.seq > coalesce((SELECT f.boundary FROM fork f WHERE f.id = s.id), -1)
)
SELECT c.name AS tool, count(*) AS calls, CAST(total(c.is_error) AS INTEGER) AS failed,
  round(100 * avg(c.is_error), 1) AS percent,
  (SELECT m.error_code FROM call m WHERE m.name = c.name AND m.is_error
   GROUP BY m.error_code ORDER BY count(*) DESC LIMIT 1) AS mostly
FROM call c WHERE c.is_error IS NOT NULL GROUP BY c.name HAVING failed > 0 ORDER BY failed DESC, tool
