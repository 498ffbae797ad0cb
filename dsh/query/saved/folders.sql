-- Sessions and turns by folder.
-- :limit = 50 how many
SELECT s.cwd AS folder, count(*) AS sessions, sum(s.turns) AS turns, sum(s.length) AS events,
  date(max(s.updated_at) / 1000, 'unixepoch', 'localtime') AS last
FROM session s WHERE s.hidden IS NULL AND s.delegation_depth = 0
GROUP BY s.cwd ORDER BY max(s.updated_at) DESC, folder LIMIT :limit
