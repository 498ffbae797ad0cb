-- The sessions that take the most room. What forks share is counted where it was written.
-- :limit = 20 how many
WITH own(id, first) AS MATERIALIZED (
  SELECT s.id, coalesce((SELECT f.boundary + 1 FROM fork f WHERE f.id = s.id), 0) FROM session s
), held(id, events, bytes) AS (
  SELECT o.id, count(*), sum(octet_length(e.data))
  FROM own o CROSS JOIN event e WHERE e.session_id = o.id AND e.seq >= o.first GROUP BY o.id
  ORDER BY 3 DESC, 1 LIMIT :limit
)
SELECT h.id AS session, h.events, h.bytes, s.turns, date(s.updated_at / 1000, 'unixepoch', 'localtime') AS last,
  (SELECT t.title FROM title t WHERE t.session_id = h.id) AS title
FROM held h JOIN session s ON s.id = h.id ORDER BY h.bytes DESC, h.id
