-- The turns that took longest.
-- :since = 30d from when on
-- :limit = 20 how many
SELECT t.session_id AS session, t.turn, round((t.ended_at - t.started_at) / 1000.0, 1) AS seconds, t.outcome,
  datetime(t.started_at / 1000, 'unixepoch', 'localtime') AS began,
  (SELECT n.title FROM title n WHERE n.session_id = t.session_id) AS title
FROM turn t
WHERE t.started_at >= :since AND t.ended_at IS NOT NULL
  AND t.start_seq > coalesce((SELECT f.boundary FROM fork f WHERE f.id = t.session_id), -1)
ORDER BY t.ended_at - t.started_at DESC, session, t.turn LIMIT :limit
