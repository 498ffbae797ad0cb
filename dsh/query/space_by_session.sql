-- How much the events of each session hold, biggest first. What forks share is counted where it was written.
-- limit: sessions
-- → session_id, events, bytes (of data, types, sources and surface operations), title
WITH own(id, first) AS MATERIALIZED (
  SELECT s.id, coalesce((SELECT f.boundary + 1 FROM fork f WHERE f.id = s.id), 0) FROM session s
), held(id, events, bytes) AS (
  SELECT o.id, count(*), sum(octet_length(e.data) + octet_length(e.type) + coalesce(octet_length(e.source_event_seqs), 0)
    + coalesce(octet_length(e.surface_op), 0))
  FROM own o CROSS JOIN event e WHERE e.session_id = o.id AND e.seq >= o.first GROUP BY o.id
)
SELECT h.id, h.events, h.bytes, (SELECT t.title FROM title t WHERE t.session_id = h.id)
FROM (SELECT * FROM held ORDER BY bytes DESC, id LIMIT :limit) h
ORDER BY h.bytes DESC, h.id
